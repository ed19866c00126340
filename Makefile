# kvferry: every target is at most three lines; what CI runs is .ci/run, which calls these targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build demo test bench-wan bench-codec-wan bench-repair netns race chaos chaos-planted chaos-real fuzz lint fmt proto proto-check tidy-check dep-check cover clean ci

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
COMMIT   ?= $(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null)
LDFLAGS  := -X main.version=$(VERSION) -X github.com/kvferry/kvferry/bench/results.commit=$(COMMIT)
TOOL     := go tool -modfile=tools.mod
E2E_PKGS  = $(shell grep -rl --include='*_test.go' '^//go:build e2e' . | xargs -r -n1 dirname | sort -u)
FUZZTIME ?= 10s
N        ?= 1000
SEED     ?= 1
RESTARTS ?= 100
# go-nvml compiles with deprecation warnings of its own; setting the variable replaces the default -O2 -g.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/kvferry and bin/kvferryd
	go build -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

demo: build ## move a session between two regions on this machine and prove it (about a minute)
	bin/kvferry demo

test: build ## unit, virtual-time and end-to-end tests (minutes)
	go test -shuffle=on -p 2 -timeout 9m ./...
	@test -n "$(E2E_PKGS)" || { echo "test: no package has '//go:build e2e' tests; there must be some" >&2; exit 1; }
	go test -shuffle=on -p 1 -timeout 9m -tags e2e -count=1 -v $(E2E_PKGS)

bench-wan: ## how full links of 1 and 10 Gbit/s stay, virtual time, and memory over 40 GiB (an hour of two cores)
	@mkdir -p bin
	go test -count=1 -timeout 5h -v -run '^(TestTable|TestMemoryBounded)$$' ./bench/steady -args -table -out $(CURDIR)/bin/bench-wan.json

bench-codec-wan: ## what codecs make of links of 1 and 10 Gbit/s, virtual time; fails where pages land slower than raw (20 minutes)
	@mkdir -p bin
	go test -count=1 -timeout 3h -v -run '^TestCodecTable$$' ./bench/steady -args -table -out $(CURDIR)/bin/bench-codec-wan.json

bench-repair: ## what repair makes of lossy paths of 1 and 10 Gbit/s, and its fairness at 500 Mbit/s, virtual time (15 minutes)
	go test -count=1 -timeout 1h -v -run '^TestRepair(Goodput|Fairness)$$' ./transfer -args -full

netns: ## the link between network namespaces; needs root and /dev/net/tun, skips with the reason otherwise
	go test -tags netns -count=1 -timeout 5m -run 'Ping|Cut|TCP|Fresh|CloseTwice|Namespaces' -v ./bench/wanns/ ./bench/compare/ ./cmd/kvferry/

race: ## unit and virtual-time tests under the race detector, with invariants
	go test -race -tags invariants -short -shuffle=on -p 2 -timeout 15m ./...

chaos: ## N runs (1000) of three daemons under seeded faults, from seed SEED (1) on, in virtual time; a table of faults and outcomes (3 minutes)
	go test -tags chaos -count=1 -timeout 2h -v -run '^TestChaos$$' ./bench/chaos -args -chaos.n $(N) -chaos.seed $(SEED)

chaos-planted: ## whether the chaos runs find each of the bugs that can be planted (a minute)
	go test -tags chaos -count=1 -timeout 30m -v -run '^TestPlanted$$' ./bench/chaos

chaos-real: N := 30
chaos-real: ## N runs (30) of three daemons and their engines as processes under seeded faults, from SEED (1) on; RESTARTS (100) of a peer (3 minutes)
	go test -tags e2e -count=1 -timeout 60m -v -run '^Test(ChaosReal|SourceGone|Restarts)$$' ./bench/chaosreal -args -n $(N) -seed $(SEED) -restarts $(RESTARTS)

fuzz: ## every fuzz target for FUZZTIME (10s)
	FUZZTIME=$(FUZZTIME) .ci/fuzz

lint: ## gofumpt, vet, staticcheck, buf lint
	@out=$$($(TOOL) gofumpt -l .) && test -z "$$out" || { printf 'not formatted, run make fmt:\n%s\n' "$$out" >&2; exit 1; }
	go vet ./... && go vet -tags e2e,netns,nvml,invariants,chaos ./... && $(TOOL) staticcheck -tags e2e,netns,nvml,invariants,chaos ./...
	$(TOOL) buf lint

fmt: ## format the Go code
	$(TOOL) gofumpt -l -w .

proto: bin/tools/protoc-gen-go bin/tools/protoc-gen-go-grpc ## regenerate proto/**/*.pb.go
	PATH="$(CURDIR)/bin/tools:$$PATH" $(TOOL) buf generate $(if $(PROTO_OUT),-o $(PROTO_OUT))

proto-check: ## fail when the committed generated code differs from what proto makes
	.ci/proto-check

tidy-check: ## fail when go.mod, go.sum or tools.mod are not tidy
	.ci/tidy-check

dep-check: ## the import table, the documents' names, and what CI's steps do
	go test -count=1 ./internal/archtest/

cover: ## coverage by package and in total
	go test -p 2 -coverprofile=cover.out -coverpkg=./... ./... && go tool cover -func=cover.out | tail -1

clean: ## remove what the other targets make
	rm -rf bin dist cover.out

ci: ## what CI runs
	bash .ci/run

bin/tools/protoc-gen-go: tools.mod
	go build -modfile=tools.mod -o $@ google.golang.org/protobuf/cmd/protoc-gen-go

bin/tools/protoc-gen-go-grpc: tools.mod
	go build -modfile=tools.mod -o $@ google.golang.org/grpc/cmd/protoc-gen-go-grpc
