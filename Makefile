# latentd.  `make help` lists the goals; `make demo` and `make test` do everything on a fresh Debian machine.
#   V=1 shows commands; BUILD=dir puts a flavour's files elsewhere; CUDA=0 leaves the CUDA backend out.

.DEFAULT_GOAL := all
FLAVOUR ?= release
ROOT    := build
BUILD   ?= $(ROOT)/$(FLAVOUR)
CC      ?= gcc
AR      ?= ar
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)
MAKEFLAGS += --no-print-directory
, := ,

FOLDERS := config kernels mempool radix model scheduler server

# What each folder may call, transitively: the link order of its tests (design: who may include whom).
DEPS_config    := config
DEPS_kernels   := kernels config
DEPS_mempool   := mempool kernels config
DEPS_radix     := radix config
DEPS_model     := model mempool kernels config
DEPS_scheduler := scheduler radix model mempool kernels config
DEPS_server    := server scheduler radix model mempool kernels config

PKGS   := libmicrohttpd libuv libcjson libpcre2-8
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
TEST_LIBS  := $(shell pkg-config --libs cmocka 2>/dev/null || echo -lcmocka)

WARN   := -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes -Wshadow -Wvla -Wno-missing-field-initializers -Werror
# -ffp-contract=off: the order of every sum and the rounding points are the contract (no fused multiply-add unless written).
BASE   := -std=c17 -D_GNU_SOURCE -I. -ffp-contract=off -fno-math-errno -pthread $(PKG_CFLAGS) $(WARN)
OPT_release := -O2 -g1 -DNDEBUG
OPT_debug   := -O0 -g3 -DLTD_DEBUG
OPT_asan    := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined -DLTD_DEBUG
OPT_tsan    := -O1 -g -fno-omit-frame-pointer -fsanitize=thread -DLTD_DEBUG
OPT_fuzz    := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined -DLTD_DEBUG
ifeq ($(FLAVOUR),fuzz)
CC := clang
endif
CFLAGS  := $(BASE) $(OPT_$(FLAVOUR)) $(EXTRA_CFLAGS)
LDFLAGS := $(if $(filter fuzz,$(FLAVOUR)),-fsanitize=address$(,)undefined,$(filter -fsanitize=%,$(OPT_$(FLAVOUR)))) -pthread
LIBS    := $(PKG_LIBS) -lm

# ---------------------------------------------------------------- sources
SRC = $(foreach f,$(1),$(filter-out server/main.c,$(wildcard $(f)/*.c $(f)/cpu/*.c)))
OBJ = $(patsubst %.c,$(BUILD)/%.o,$(call SRC,$(1)))
LIB = $(patsubst %,$(BUILD)/lib%.a,$(1))

# The CPU kernels are compiled once per instruction set into one binary and chosen at run time: kernels/cpu/vec_*.c
# are the files that profit; each defines its symbols through VEC_NAME() with the suffix of its instruction set.
ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
ISAS := v2 v3 v4
ISA_v2 := -march=x86-64-v2
ISA_v3 := -march=x86-64-v3
ISA_v4 := -march=x86-64-v4 -mprefer-vector-width=512
else
ISAS := base
ISA_base :=
endif
VEC_SRC := $(wildcard kernels/cpu/vec_*.c)
VEC_OBJ := $(foreach i,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(i).o,$(VEC_SRC)))
# Vector code is optimised in every flavour: its speed decides whether the tests end in time.
VEC_OPT := -O3 -fno-trapping-math

FLAGS_STAMP := $(BUILD)/.flags
FLAGS_NOW   := $(CC) $(CFLAGS) $(LDFLAGS) $(ISAS)

.PHONY: all debug check test test-c test-http soak bench asan tsan ubsan fuzz check-deps check-headers format clean help install demo deps FORCE

all: $(BUILD)/latentd
	@mkdir -p $(ROOT) && ln -sfn $(abspath $<) $(ROOT)/latentd

$(FLAGS_STAMP): FORCE
	@mkdir -p $(@D); printf '%s\n' "$(FLAGS_NOW)" | cmp -s - $@ || printf '%s\n' "$(FLAGS_NOW)" > $@

$(BUILD)/%.o: %.c $(FLAGS_STAMP)
	@mkdir -p $(@D); [ $(V) = 1 ] || echo "  CC    $<"
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

define isa_rule
$(BUILD)/kernels/cpu/vec_%.$(1).o: kernels/cpu/vec_%.c $(FLAGS_STAMP)
	@mkdir -p $$(@D); [ $(V) = 1 ] || echo "  CC    $$< ($(1))"
	$(Q)$(CC) $(CFLAGS) $(VEC_OPT) $(ISA_$(1)) -DVEC_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$(i))))

define lib_rule
$(BUILD)/lib$(1).a: $(filter-out $(BUILD)/kernels/cpu/vec_%,$(call OBJ,$(1))) $(if $(filter kernels,$(1)),$(VEC_OBJ))
	@mkdir -p $$(@D); rm -f $$@
	$(Q)$(AR) rcs $$@ $$^
endef
$(foreach f,$(FOLDERS),$(eval $(call lib_rule,$(f))))

BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(BUILD)/.build_id: FORCE
	@mkdir -p $(@D); echo "$(BUILD_ID)" | cmp -s - $@ || echo "$(BUILD_ID)" > $@
$(BUILD)/config/status.o: CFLAGS += -DLTD_BUILD_ID='"$(BUILD_ID)"'
$(BUILD)/config/status.o: $(BUILD)/.build_id

$(BUILD)/latentd: $(BUILD)/server/main.o $(call LIB,$(DEPS_server))
	@[ $(V) = 1 ] || echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(call LIB,$(DEPS_server)) $(LIBS)

# The daemon on the fake model (tests/support/fake_model.c stands where libmodel.a would give model_*): speed and faults of the server alone.
$(BUILD)/latentd-fake: $(BUILD)/server/main.o $(BUILD)/tests/support/fake_daemon.o $(BUILD)/tests/support/fake_model.o $(call LIB,$(DEPS_server))
	@[ $(V) = 1 ] || echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -Wl,--wrap=model_open -o $@ $(filter %.o,$^) $(call LIB,$(DEPS_server)) $(LIBS)

# ---------------------------------------------------------------- tests
# tests/test_<folder>_<topic>.c: one small cmocka binary each; it sees its folder's libraries and no others.
# tests/support/*.c: shared devices (fake model, byte tokenizer, checkpoint writer), linked where a test names them in SUPPORT_<test>.
TESTS   := $(basename $(notdir $(wildcard tests/test_*.c)))
BENCHES := $(basename $(notdir $(wildcard tests/bench/bench_*.c)))
folder_of = $(word 2,$(subst _, ,$(1)))
include tests/tests.mk

support_of = $(patsubst %,$(BUILD)/tests/support/%.o,$(SUPPORT_$(1)))
define test_rule
$(BUILD)/tests/$(1): $(BUILD)/tests/$(1).o $(call support_of,$(1)) $(call LIB,$(or $(LINK_$(1)),$(DEPS_$(call folder_of,$(1)))))
	@[ $(V) = 1 ] || echo "  LINK  $$@"
	$(Q)$(CC) $(LDFLAGS) -o $$@ $$(filter %.o,$$^) $(call LIB,$(or $(LINK_$(1)),$(DEPS_$(call folder_of,$(1))))) $(TEST_LIBS) $(LIBS)
endef
$(foreach t,$(TESTS),$(eval $(call test_rule,$(t))))
define bench_rule
$(BUILD)/tests/bench/$(1): $(BUILD)/tests/bench/$(1).o $(call support_of,$(1)) $(call LIB,$(or $(LINK_$(1)),$(DEPS_$(call folder_of,$(1)))))
	@[ $(V) = 1 ] || echo "  LINK  $$@"
	$(Q)$(CC) $(LDFLAGS) -o $$@ $$(filter %.o,$$^) $(call LIB,$(or $(LINK_$(1)),$(DEPS_$(call folder_of,$(1))))) $(LIBS)
endef
$(foreach t,$(BENCHES),$(eval $(call bench_rule,$(t))))

# tests/fuzz/fuzz_<folder>_<parser>.c or fuzz_<parser>.c: libFuzzer entries; FUZZ_SECONDS each, corpora in tests/fuzz/corpus/<name>.
FUZZERS := $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.c)))
define fuzz_rule
$(BUILD)/tests/fuzz/$(1): $(BUILD)/tests/fuzz/$(1).o $(call support_of,$(1)) $(call LIB,$(or $(LINK_$(1)),$(DEPS_server)))
	@[ $(V) = 1 ] || echo "  LINK  $$@"
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $$@ $$(filter %.o,$$^) $(call LIB,$(or $(LINK_$(1)),$(DEPS_server))) $(LIBS)
endef
$(foreach t,$(FUZZERS),$(eval $(call fuzz_rule,$(t))))
FUZZ_SECONDS ?= 60

TEST_BINS  := $(patsubst %,$(BUILD)/tests/%,$(TESTS))
BENCH_BINS := $(patsubst %,$(BUILD)/tests/bench/%,$(BENCHES))

test-c: $(TEST_BINS)
	$(Q)scripts/run_tests.sh $(BUILD) $(TEST_BINS)

# Those with threads of their own: what the thread sanitizer has something to say about (tests/tests.mk).
THREAD_BINS := $(patsubst %,$(BUILD)/tests/%,$(filter $(TESTS),$(THREADED)))
test-threads: $(THREAD_BINS)
	$(Q)scripts/run_tests.sh $(BUILD) $(THREAD_BINS)

# ---------------------------------------------------------------- goals
deps: ## installs what is missing (Debian; root or sudo)
	$(Q)scripts/deps.sh

# make reads pkg-config's answers before it installs anything: so installing and building are two runs.
demo: ## installs, builds, serves the bundled checkpoint, prints a curl line
	$(Q)scripts/deps.sh
	$(Q)$(MAKE) -j$$(nproc) all
	$(Q)scripts/demo.sh

test: ## installs, builds, runs every test that needs no GPU
	$(Q)scripts/deps.sh
	$(Q)$(MAKE) -j$$(nproc) check

check: check-deps check-headers all $(BUILD)/latentd-fake
	$(Q)scripts/check.sh $(BUILD)

test-http: $(BUILD)/latentd $(BUILD)/latentd-fake ## the daemon over HTTP: pytest, raw sockets, the openai package
	$(Q)scripts/http_tests.sh $(BUILD)
soak: $(BUILD)/latentd $(BUILD)/latentd-fake ## the long forms of the HTTP tests
	$(Q)LATENTD_SOAK=1 scripts/http_tests.sh $(BUILD)

debug: ## build/debug: assertions, no optimisation
	$(Q)$(MAKE) FLAVOUR=debug all
asan: ## C tests under the address and undefined-behaviour sanitizers
	$(Q)$(MAKE) FLAVOUR=asan test-c
tsan: ## C tests under the thread sanitizer
	$(Q)$(MAKE) FLAVOUR=tsan test-c
ubsan: asan

fuzz-run: $(patsubst %,$(BUILD)/tests/fuzz/%,$(FUZZERS))
	$(Q)for f in $(FUZZERS); do mkdir -p $(BUILD)/corpus/$$f; \
	  $(BUILD)/tests/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -artifact_prefix=$(BUILD)/corpus/$$f- $(BUILD)/corpus/$$f $(wildcard tests/fuzz/corpus/$$f) || exit 1; done
fuzz: ## libFuzzer on every parser, FUZZ_SECONDS=60 each (clang)
	$(Q)$(MAKE) FLAVOUR=fuzz fuzz-run

check-deps: ## who includes whom
	$(Q)scripts/check_deps.sh
check-headers: ## every public header alone, as C17 and C++17
	$(Q)scripts/check_headers.sh
format: ## clang-format
	$(Q)scripts/format.sh

bench: $(BENCH_BINS) all $(BUILD)/latentd-fake ## benchmarks; figures for tests/bench/RESULTS.md
	$(Q)for b in $(filter-out %/bench_http,$(BENCH_BINS)); do echo "== $$b"; $$b || exit 1; done
	$(Q)echo "== bench_http"; $(BUILD)/tests/bench/bench_http $(BUILD)/latentd-fake
	$(Q)for m in "" --reference; do echo "== bench_serving $$m"; tests/bench/bench_serving.py --binary $(BUILD)/latentd $$m || exit 1; done

PREFIX ?= /usr/local
install: all ## PREFIX=/usr/local, DESTDIR
	install -D -m 755 $(BUILD)/latentd $(DESTDIR)$(PREFIX)/bin/latentd
	install -D -m 644 config/latentd.json $(DESTDIR)$(PREFIX)/share/latentd/latentd.json

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

clean:
	rm -rf $(ROOT)
