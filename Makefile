# Every target works on a fresh machine with Go and Debian's packages; `make help` lists them.
SHELL = /bin/bash
.SHELLFLAGS = -o pipefail -c
export CGO_ENABLED ?= 0
GO ?= go
FUZZTIME ?= 30s
TOOL = $(GO) tool -modfile=tools/go.mod
CACHE = $${XDG_CACHE_HOME:-$$HOME/.cache}/warmpath
# the tests in the files of ./test/testenv whose names begin with $(1); an error when there is none, since `go test` would pass
tests = '^($(or $(shell grep -ho '^func Test[A-Za-z0-9]*' test/testenv/$(1)_*_test.go | cut -c6- | paste -sd'|'),$(error no test in test/testenv/$(1)_*_test.go)))$$'

.PHONY: help build check test race model hostile virtual times fuzz interop test-binary test-fleet test-engines golden traces test-bench bench bench-engines tidy
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

build: ## the static binary, in bin/
	$(GO) build -trimpath -ldflags '-s -w' -o bin/warmpath ./cmd/warmpath

check: ## format, vet, staticcheck, architecture and the fast tests: under a minute when the build cache is warm (TESTED=1: no tests)
	@out=$$(gofmt -l . ); test -z "$$out" || { echo "gofmt these:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(if $(TESTED),,$(GO) test -short -vet=off -p $$((2 * $$(nproc))) ./...) # many tests wait: so two packages a core
	cd examples && $(GO) vet ./... $(if $(TESTED),,&& $(GO) test ./...)

test: ## every test: some 10 minutes on two cores; the last lines name what skipped, and the command that installs what it needs
	{ $(GO) test -v -timeout 20m ./test/testenv ./...; s=$$?; (cd examples && $(GO) test -v ./...) && exit $$s; } | awk -f test/skipped.awk

race: ## make test -short under the race detector (needs gcc), where something is concurrent or unsafe
	CGO_ENABLED=1 $(GO) test -race -short -vet=off -timeout 20m $$(grep -rlE --include='*.go' --exclude-dir={bench,examples,testdata,tools} '"(sync|sync/atomic|unsafe|testing/synctest|net/http/httptest)"|^\s*go [a-z]|\.Go\(|AfterFunc|Parallel\(' . | xargs -n1 dirname | sort -u)

model: ## 10^8 random operations against the naive index and modelled engines: an hour on two cores (OPS)
	WARMPATH_MODEL_OPS=$${OPS:-100000000} $(GO) test -count=1 -timeout 0 -v -run '^TestIndex(Answers|Claims)' -skip Hostile ./kvindex/kvindextest

hostile: ## 10^7 operations beside hostile holders in an index at its limit (OPS, SEED), and floods of 10^7 blocks: some 7 minutes of CPU
	WARMPATH_FLOOD_BLOCKS=10000000 $(GO) test -count=1 -timeout 0 -run '^(TestAFloodTakesNothingFromOthersShares|TestContentUnderNewHashesDoesNotStopAFullIndex)$$' ./kvindex
	WARMPATH_MODEL_OPS=$${OPS:-10000000} WARMPATH_MODEL_SEED=$$SEED $(GO) test -count=1 -timeout 0 -run '^TestIndexClaimsNoMoreBesideHostileHolders$$' ./kvindex/kvindextest

virtual: ## the whole router in virtual time: SEEDS seeds (1000) from FIRST (1) on; 100,000 take two to three hours of one core
	GODEBUG=tracebacklabels=1 WARMPATH_VIRTUAL_SEEDS=$${SEEDS:-1000} WARMPATH_VIRTUAL_FIRST=$${FIRST:-1} $(GO) test -count=1 -timeout 0 -run InVirtualTime ./test/testenv

times: ## learned times on noisy machines, hours of virtual time for each of SEEDS seeds (3): a quarter of an hour of one core
	WARMPATH_TIMES_SEEDS=$${SEEDS:-3} $(GO) test -count=1 -timeout 0 -v -run '^(TestNoiseOnLikeMachinesIsNoPreference|TestASlowMachine.*|TestAShareReturnsAfterABurst)$$' ./internal/sim

fuzz: ## every fuzz target for FUZZTIME each
	bash test/fuzz.sh $(FUZZTIME)

interop: ## tests with real libzmq, the publisher library in Python and C, a gRPC client in Python, NATS, Valkey, Redis, the official OpenAI and Anthropic clients, an OpenTelemetry receiver and Prometheus; installs what it needs (see test/interop.sh)
	bash test/interop.sh
	WARMPATH_INTEROP=1 $(GO) test -count=1 ./block ./internal/zmtp/... ./kvfeed/... ./publish ./internal/indexer ./internal/sharedindex ./internal/replica
	WARMPATH_INTEROP=1 $(GO) test -count=1 -timeout 20m -run 'OpenAI|Anthropic|VectorsAreMadeAgain|OpenTelemetry|InPrometheus' ./test/testenv

test-binary: build ## the built binary against mock engines: restarts, losses, deaths, disconnects
	WARMPATH_BINARY=$(CURDIR)/bin/warmpath $(GO) test -count=1 -timeout 20m -run $(call tests,binary) ./test/testenv

test-fleet: build ## many routers, index services and mock engines as processes, with a real NATS, Valkey and Redis; installs them (see test/interop.sh)
	bash test/interop.sh
	WARMPATH_INTEROP=1 WARMPATH_BINARY=$(CURDIR)/bin/warmpath $(GO) test -count=1 -timeout 20m -run $(call tests,fleet) ./test/testenv && WARMPATH_INTEROP=1 $(GO) test -count=1 ./internal/sharedindex

test-engines: build ## the built binary with real vLLM and SGLang on a CPU; installs them (6 GB in the cache folder) or fails
	bash test/engines/setup.sh
	WARMPATH_INTEROP=1 WARMPATH_ENGINES=$${WARMPATH_ENGINES:-$(CACHE)/engines} WARMPATH_BINARY=$(CURDIR)/bin/warmpath $(GO) test -count=1 -v -parallel 2 -timeout 45m -run $(call tests,engines) ./test/testenv

bench: ## every benchmark once, allocations reported; bench/README.md has the comparisons with other projects
	$(GO) test -run '^$$' -bench . -benchmem ./...

golden: ## answers of the reference tokenizers and of CPython's jinja2, for the tests that compare with them (2.5 GB in the cache folder)
	bash test/golden.sh

traces: ## whole public traces into the cache folder, for the test of published hit curves
	bash test/testenv/traces.sh $(CACHE)/traces

test-bench: ## vet and tests of the bench module
	cd bench && $(GO) vet ./... && $(GO) test ./...

bench-engines: ## routers side by side on real vLLM engines: 1 h 45 min; bench/engines/run.sh has shorter runs
	bash bench/engines/run.sh

tidy: ## go.mod of every module
	$(GO) mod tidy && for m in tools bench examples; do (cd $$m && $(GO) mod tidy) || exit 1; done
