package archtest

// module is our module path.
const module = "github.com/kvferry/kvferry"

// rule is one row of the import table. It binds production code: a package's imports, and theirs, all the way down.
type rule struct {
	// pkg is a folder; "x/..." is x and everything below. The longest match wins.
	pkg string
	// own are our packages that may be in its import graph, besides those that pkg itself matches; nil means none.
	own []string
	// deny are others that may not be in its import graph, by prefix.
	deny []string
	// onlyOthers, when not nil, are the only modules outside the standard library that may be in its import graph.
	onlyOthers []string
	// onlyStd, when not nil, are the only standard packages that it may import itself.
	onlyStd []string
	// anything switches off own.
	anything bool
	// planned packages do not exist yet; a row of one that does must drop the mark.
	planned bool
	// reason is why.
	reason string
}

// domain packages never import one another; internal/daemon joins them.
var domain = []string{"kvstore", "transfer/...", "planner", "nvml"}

const (
	grpcModule = "google.golang.org/grpc"
	quicModule = "github.com/quic-go/quic-go"
)

// none is a list that allows nothing, where nil would allow everything.
var none = []string{}

var rules = []rule{
	{
		pkg: "planner", onlyStd: []string{"cmp", "errors", "fmt", "iter", "math", "slices", "time"}, onlyOthers: none,
		reason: "the planner is pure values: the same inputs give the same plan, so it knows no clock, context, file, socket or log",
	},
	{
		pkg: "planner/plannertest", own: []string{"planner"}, planned: true,
		reason: "helpers for tests of the planner",
	},
	{
		pkg: "kvstore", own: []string{"internal/fault"}, deny: []string{quicModule, grpcModule},
		reason: "the store is memory and files: it can be used and tested without a network, an API or a policy",
	},
	{
		pkg: "kvstore/kvstoretest", own: []string{"kvstore", "internal/fault"}, deny: []string{quicModule, grpcModule},
		reason: "the conformance suite needs the store and nothing else",
	},
	{
		pkg: "transfer", own: []string{"transfer/...", "internal/fault"}, deny: []string{grpcModule},
		reason: "an agent moves registered memory: it declares its own small source and sink, and control messages are opaque payloads to it",
	},
	{
		pkg: "transfer/wire", onlyOthers: []string{"github.com/klauspost/compress"},
		reason: "the wire format is pure encoding and decoding over bytes",
	},
	{
		pkg: "transfer/codec", onlyOthers: []string{"github.com/klauspost/compress", "golang.org/x/sys"},
		reason: "codecs are pure functions over bytes; x/sys/cpu says which of them the processor has instructions for",
	},
	{
		pkg: "transfer/udp", onlyOthers: []string{"golang.org/x/sys", "golang.org/x/net"},
		reason: "the socket only satisfies quic-go's interfaces, and must be testable without it",
	},
	{
		pkg: "transfer/repair", onlyOthers: []string{"golang.org/x/sys", "golang.org/x/net", "github.com/klauspost/reedsolomon", "github.com/klauspost/cpuid"},
		reason: "repair sits between a socket and QUIC and needs neither: it sees packets and addresses",
	},
	{
		pkg: "transfer/transfertest", own: []string{"transfer/...", "internal/fault"}, deny: []string{grpcModule},
		reason: "helpers for tests of links need links and nothing else",
	},
	{
		pkg: "nvml", deny: []string{grpcModule, quicModule},
		reason: "GPU readings are a driver binding and nothing of ours",
	},
	{
		pkg:    "proto/...",
		reason: "generated code depends on protobuf and gRPC only",
	},
	{
		pkg: "prefill", own: []string{"proto/..."}, deny: []string{quicModule},
		reason: "a proxy embeds it: it brings the API's client along and nothing else",
	},
	{
		pkg: "internal/certs", onlyOthers: none,
		reason: "certificates are used by tools, daemons and tests alike, so they bring nothing along",
	},
	{
		pkg: "internal/engineload", onlyOthers: none,
		reason: "it reads an engine's exposition over HTTP and gives numbers; what they mean is the planner's",
	},
	{
		pkg: "internal/doctor", own: append([]string{"proto/...", "internal/certs", "internal/policy", "internal/engineload", "internal/fault", "internal/daemon/..."}, domain...),
		reason: "it checks what the daemon needs by the daemon's own means",
	},
	{
		pkg: "internal/fault", onlyOthers: none,
		reason: "the domain packages name their boundaries by it, and a build without the tag chaos has nothing of it",
	},
	{
		pkg: "internal/policy", onlyOthers: []string{"github.com/goccy/go-yaml"},
		reason: "a policy file gives decisions: who asks for one, and what comes of it, is the daemon's",
	},
	{
		pkg: "internal/archtest", onlyOthers: none,
		reason: "it holds tests only",
	},
	{
		pkg: "internal/daemon/...", own: append([]string{"proto/...", "internal/certs", "internal/policy", "internal/engineload", "internal/fault"}, domain...),
		reason: "the daemon joins the domain packages; commands and benchmarks are built on it, not under it",
	},
	{
		pkg: "bench/...", own: append([]string{"proto/...", "internal/certs", "internal/policy", "internal/engineload", "internal/fault", "internal/daemon/..."}, domain...),
		reason: "benchmarks use what users use, and commands are built on them, not under them",
	},
	{
		pkg: "bench/kvgen", onlyOthers: none,
		reason: "values come from a seed alone",
	},
	{
		pkg: "bench/kvfile", onlyOthers: none,
		reason: "a file format is encoding over bytes",
	},
	{
		pkg: "bench/wan", onlyOthers: none,
		reason: "the link model joins test bubbles and processes of any package, so it brings nothing along",
	},
	{
		pkg: "cmd/...", anything: true,
		reason: "commands may use anything",
	},
}

// protoImporters are who may import the generated types directly.
var protoImporters = []string{"prefill", "internal/daemon/...", "internal/doctor", "bench/...", "cmd/...", "proto/..."}

// clockNames are what the planner may not use of package time: they read or wait for a clock.
var clockNames = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
