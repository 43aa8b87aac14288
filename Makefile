# The commands of this repository. `make` alone lists them.

GO ?= go
CACHE := $(CURDIR)/.cache
LINTER := $(CACHE)/bin/golangci-lint
RERUNNER := $(CACHE)/bin/gotestsum
# Says how long a command has been at it.
PATIENTLY := $(CURDIR)/scripts/patiently
# Every module but tools/, which holds no code of ours.
MODULES := . bench torture browser examples/sinks

# How long a package's tests may take, under the race detector on a machine that is busy with other things: the longest, with
# Postgres, takes 6 minutes beside others on two cores, and has taken 28 where those are slow. A package that hangs must be told, with
# what it hangs in, before .ci/run gives up.
TEST_TIMEOUT ?= 40m
# Packages at a time, and tests of one package at a time: many of them wait, for a lease to end
# or for a server.
TEST_PACKAGES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
TEST_PARALLEL ?= 4
# The benchmarks' tests wait most of the time: for leases, and for garbage to become old.
BENCH_PARALLEL ?= 8
TEST_FLAGS ?=
# How often tests that failed are run again, each by its name, and the files in which
# those are listed; .ci/run sets it. A data race, a panic or a leak is never run again.
RERUNS ?= 0
# More failures than this are never run again. Each test around a subtest that failed counts as one.
RERUNS_MOST ?= 20
UNSTEADY := $(CACHE)/unsteady
FUZZTIME ?= 20s
STORE ?=
SCALE ?= 1
BENCH_FLAGS ?=
# Schedules of each program that is not explored to its end: in order (0 for all), and
# at random. Fewer in all than EXPLORE_LEAST is a failure.
EXPLORE_LIMIT ?= 20000
EXPLORE_RANDOM ?= 5000
EXPLORE_WHOLE ?= 0
EXPLORE_LEAST ?= 200000
EXPLORE_FLAGS ?=
# Which scenarios, a regular expression: Drain, Live, ScaleOut, Heterogeneous, Idle,
# RollingRestart, Kill, Stalled.
SIMULATE_RUN ?= .
SIMULATE_FLAGS ?=
# Which mutants: a regular expression.
MUTANTS ?= .
# What torture kills, and how long on each.
BACKEND ?= pebble redis redis-cluster postgres multi
DURATION ?= 1m
TORTURE_FLAGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## List these commands
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# No vet: make lint has its checks, and it would read every dependency once more.
TEST_RUN = -race -vet=off -p $(TEST_PACKAGES) -parallel $$parallel -timeout $(TEST_TIMEOUT) \
	-exec 'env GOGC=$(TEST_GOGC) GOMEMLIMIT=$(TEST_GOMEMLIMIT)' $(TEST_FLAGS)
ifeq ($(RERUNS),0)
TEST = $(GO) test $(TEST_RUN) ./...
else
TEST = $(RERUNNER) --format standard-quiet --rerun-fails=$(RERUNS) --rerun-fails-max-failures=$(RERUNS_MOST) --rerun-fails-abort-on-data-race \
	--rerun-fails-report $(UNSTEADY)-$$(basename $$module) --jsonfile $(CACHE)/tests-$$(basename $$module).json --packages ./... -- $(TEST_RUN)
TEST_NEEDS := $(RERUNNER)
endif

# Programs that tests build have the race detector too: it looks at them as well, and their
# dependencies need not be compiled a second time. "go list -export" compiles as "go build"
# does, and links nothing.
#
# Nothing here is debugged, so nothing has the tables for a debugger (DWARF); traces of the
# stack have their lines from another table. The compiler, whose processes are short, collects
# its garbage less often. Both together save a quarter of the processor that compiling takes,
# and the compiler of our largest package has 360 MB instead of 205.
#
# Programs of tests collect their garbage less often, as long as they are small, and do not check conversions of unsafe pointers (checkptr),
# which none of our code has. That saves a tenth of the processor that they take.
#
# GORACE tunes the race detector, and takes nothing from what it sees. A program with it sleeps for a second before it ends, and tests run
# hundreds of programs: 50 ms are enough. It keeps a shadow of some four times the memory of a program, which it gives back to the kernel
# with each object of more than 16 kB, and takes anew in pages of 4 kB: a quarter of a run was spent on their faults. So it may have huge
# pages, and clears up to 16 MB by itself. Package percolator took a third less of the processor with these two, a backend about a twentieth.
TEST_GORACE ?= atexit_sleep_ms=50 no_huge_pages_for_shadow=0 clear_shadow_mmap_threshold=16777216
COMPILE_GOGC ?= 400
TEST_GOGC ?= 400
TEST_GOMEMLIMIT ?= 1GiB
TEST_GOFLAGS = $$($(GO) env GOFLAGS) -race '-gcflags=all=-dwarf=false -d=checkptr=0' -ldflags=-s '-toolexec=env GOGC=$(COMPILE_GOGC)'

.PHONY: test
test: $(TEST_NEEDS) ## Run every test with the race detector; gets the servers and the browser that tests need
	@echo "servers for the tests: containers, programs of this machine, or those that the environment names"
	@servers=$$(scripts/test-servers) || exit 1; export PERCOLATOR_TEST_SERVERS=$$servers; \
	browser=$$(scripts/test-browser) || exit 1; export PERCOLATOR_TEST_BROWSER=$$browser; \
	export PERCOLATOR_TEST_REPORT=$(CACHE)/ran; mkdir -p $(CACHE)/ran; rm -f $(UNSTEADY)-*; status=0; \
	GOFLAGS="$(TEST_GOFLAGS)"; export GOFLAGS; \
	export GORACE="$${GORACE-$(TEST_GORACE)}"; \
	for module in $(MODULES); do \
		echo "go list -race -export ./... ($$module): the first time it fetches modules, and compiles for minutes"; \
		(cd $$module && $(PATIENTLY) "compiling" $(GO) list -race -export ./... >/dev/null) || status=1; \
		echo "go test -race ./... ($$module): a line for each package when it ends; some take minutes"; \
		if [ $$module = bench ]; then parallel=$(BENCH_PARALLEL); else parallel=$(TEST_PARALLEL); fi; \
		(cd $$module && $(TEST)) || status=1; \
	done; \
	if grep -s ': 0 runs' $(UNSTEADY)-*; then echo "a package failed beside its tests: a leak?"; status=1; fi; \
	echo "the tests ran against:"; sort -u $(CACHE)/ran/* 2>/dev/null | sed 's/^/  /'; exit $$status

.PHONY: lint
lint: $(LINTER) ## Check format, vet and style of every module
	@if git ls-files --eol | grep '^i/-text' | grep -v '[.]png$$'; then echo "programs that were built do not belong into the tree" >&2; exit 1; fi
	@for module in $(MODULES); do \
		echo "golangci-lint run ./... ($$module)"; \
		(cd $$module && $(LINTER) run ./...) || exit 1; \
	done

.PHONY: fmt
fmt: $(LINTER) ## Format every Go file the way lint wants it
	@for module in $(MODULES); do (cd $$module && $(LINTER) fmt ./...) || exit 1; done

# Tools are built from the versions in tools/go.mod, through the module proxy: nothing
# is installed by hand, and everybody runs the same ones.
$(LINTER): tools/go.mod tools/go.sum
	@echo "building golangci-lint (once)"
	@mkdir -p $(@D)
	@cd tools && $(PATIENTLY) "compiling the linter" $(GO) build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(RERUNNER): tools/go.mod tools/go.sum
	@echo "building gotestsum (once)"
	@mkdir -p $(@D)
	@cd tools && $(PATIENTLY) "compiling gotestsum" $(GO) build -o $@ gotest.tools/gotestsum

.PHONY: bench
bench: ## Measure against peers and against the bars (BENCH_FLAGS="-help" for the choices)
	@cd bench && $(GO) run . $(BENCH_FLAGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: conformance
conformance: ## Run the conformance suite against a store of your own: make conformance STORE=URL
	@test -n "$(STORE)" || { echo "usage: make conformance STORE=URL (SCALE=1)" >&2; exit 2; }
	@$(GO) test ./internal/anystore -v -timeout 2h -run '^TestConformance$$' -store '$(STORE)' -scale $(SCALE)

.PHONY: explore
explore: ## Explore interleavings of small programs (EXPLORE_LIMIT, EXPLORE_RANDOM schedules of the larger ones)
	@GOGC=$${GOGC-$(TEST_GOGC)} GOMEMLIMIT=$${GOMEMLIMIT-$(TEST_GOMEMLIMIT)} $(GO) test ./internal/explore -v -timeout 240h -run '^TestExplore$$' -explore.whole $(EXPLORE_WHOLE) -explore.limit $(EXPLORE_LIMIT) -explore.random $(EXPLORE_RANDOM) -explore.least $(EXPLORE_LEAST) $(EXPLORE_FLAGS)

.PHONY: simulate
simulate: ## Let 1 to 1,000 workers run in simulated time, through deployments and deaths (SIMULATE_RUN=regexp, SIMULATE_FLAGS="-workers 1,8 -latency 200us")
	@$(GO) test ./internal/simulate -list '$(SIMULATE_RUN)' | grep -q '^Test' || { echo "no scenario matches SIMULATE_RUN=$(SIMULATE_RUN); there are:"; $(GO) test ./internal/simulate -list . | grep '^Test'; exit 1; }
	@$(GO) test ./internal/simulate -v -timeout 10h -run '$(SIMULATE_RUN)' -args -whole -workers 1,2,4,8,32,100,300,1000 $(SIMULATE_FLAGS)

.PHONY: mutants
mutants: ## Break the protocol, one rule at a time, and show which test catches it (MUTANTS=regexp)
	@$(GO) run ./internal/mutants -run '$(MUTANTS)'

.PHONY: torture
torture: ## Kill servers and processes under load, and judge what they saw (BACKEND="redis postgres", DURATION=10m)
	@servers=$$(scripts/test-servers) || exit 1; export PERCOLATOR_TEST_SERVERS=$$servers; \
	mkdir -p $(CACHE)/bin && (cd torture && $(PATIENTLY) "compiling" $(GO) build -o $(CACHE)/bin/torture .) || exit 1; \
	for backend in $(BACKEND); do \
		$(CACHE)/bin/torture -backend $$backend -duration $(DURATION) $(TORTURE_FLAGS) || exit 1; \
	done

.PHONY: images
images: ## Build the container images of the test servers from Debian's packages (as root)
	@scripts/images

.PHONY: screenshots
screenshots: ## Take the pictures of the page for the documents
	@browser=$$(scripts/test-browser) || exit 1; export PERCOLATOR_TEST_BROWSER=$$browser; \
	cd browser && $(GO) test -count=1 . -screenshots $(CURDIR)/docs/page

.PHONY: tidy
tidy: ## Tidy the go.mod of every module
	@for module in $(MODULES) tools; do (cd $$module && $(GO) mod tidy) || exit 1; done

.PHONY: clean
clean: ## Remove what the commands above built, and containers that tests left
	@rm -rf $(CACHE) bin
	@scripts/test-servers clean
