package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// root is the repository's root as this package's tests see it.
const root = "../.."

// list runs go list over the module and everything that it imports.
func list(t *testing.T, tags string) graph {
	t.Helper()
	// -e: a package that does not compile is the compiler's business; its imports still count here.
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-tags", tags,
		"-json=ImportPath,Doc,Standard,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	g := graph{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var n node
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		g[n.ImportPath] = n
	}
	if len(g) < 50 {
		t.Fatalf("go list found %d packages only", len(g))
	}
	return g
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, tags := range []string{"", "invariants,e2e,chaos"} {
		g := list(t, tags)
		for _, b := range g.check(rules) {
			t.Errorf("tags %q: %s", tags, b)
		}
	}
}

// Every package that is not generated says what it is for.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	for path, n := range list(t, "") {
		folder, own := ours(path)
		if own && n.Doc == "" && !matches("proto/...", folder) {
			t.Errorf("%s has no package comment; write one, in doc.go where it is long", folder)
		}
	}
}

// The planner may hold a time.Duration, but must not look at a clock.
func TestPlannerHasNoClock(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "planner", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in planner: %v", err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range clockUses(fset, file) {
			t.Errorf("%s: the planner is pure; take the time as an input", use)
		}
	}
}

// clockUses returns every use of a clock in a file that imports time under its own name.
func clockUses(fset *token.FileSet, file *ast.File) []string {
	var uses []string
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockNames, sel.Sel.Name) {
			uses = append(uses, fset.Position(sel.Pos()).String()+": time."+sel.Sel.Name)
		}
		return true
	})
	return uses
}

// The checker itself is held to graphs with one known fault each.
func TestCheckBites(t *testing.T) {
	t.Parallel()
	std := func(names ...string) graph {
		g := graph{}
		for _, n := range names {
			g[n] = node{ImportPath: n, Standard: true}
		}
		return g
	}
	pkg := func(g graph, folder string, imports ...string) {
		g[module+"/"+folder] = node{ImportPath: module + "/" + folder, Imports: imports}
	}
	for _, c := range []struct {
		name  string
		build func(graph)
		want  []string // substrings of the only breaches
	}{
		{"clean", func(g graph) {
			pkg(g, "planner", "math")
			pkg(g, "transfer/wire", "math")
			pkg(g, "internal/fault")
			pkg(g, "transfer", module+"/transfer/wire", module+"/internal/fault", quicModule)
			pkg(g, "proto/kvferry/v1", grpcModule)
			pkg(g, "internal/daemon", module+"/transfer", module+"/planner", module+"/proto/kvferry/v1")
			pkg(g, "cmd/kvferryd", module+"/internal/daemon")
		}, nil},
		{"standard package", func(g graph) { pkg(g, "planner", "os") }, []string{"planner imports os: may import only cmp"}},
		{"standard package by way of another", func(g graph) {
			g["fmt"] = node{ImportPath: "fmt", Standard: true, Imports: []string{"os"}}
			pkg(g, "planner", "fmt")
		}, nil},
		{"another domain package", func(g graph) {
			pkg(g, "planner")
			pkg(g, "kvstore", module+"/planner")
		}, []string{"kvstore imports planner (kvstore -> planner): of ours it may import only internal/fault"}},
		{"a package of ours where none is allowed", func(g graph) {
			pkg(g, "internal/fault")
			pkg(g, "planner", module+"/internal/fault")
		}, []string{"planner imports internal/fault (planner -> internal/fault): may import no package of ours"}},
		{"by way of a third", func(g graph) {
			g["example.com/x"] = node{ImportPath: "example.com/x", Imports: []string{grpcModule + "/codes"}}
			pkg(g, "transfer", "example.com/x")
		}, []string{"transfer imports google.golang.org/grpc/codes (transfer -> example.com/x -> google.golang.org/grpc/codes): may not"}},
		{"other module in the wire format", func(g graph) { pkg(g, "transfer/wire", quicModule) }, []string{"besides the standard library it may import only"}},
		{"compression in the wire format", func(g graph) { pkg(g, "transfer/wire", "github.com/klauspost/compress/zstd") }, nil},
		{"a name that only begins alike", func(g graph) { pkg(g, "transfer/wire", "github.com/klauspost/compressor") }, []string{"transfer/wire imports"}},
		{"generated types", func(g graph) {
			pkg(g, "proto/kvferry/v1")
			pkg(g, "kvstore", module+"/proto/kvferry/v1")
		}, []string{"kvstore imports proto/kvferry/v1 (", "generated types never enter domain packages"}},
		{"a command", func(g graph) {
			pkg(g, "cmd/kvferry/x")
			pkg(g, "bench", module+"/cmd/kvferry/x")
		}, []string{"bench imports cmd/kvferry/x (", "nothing imports a command"}},
		{"a command from a test", func(g graph) {
			g[module+"/bench"] = node{ImportPath: module + "/bench", XTestImports: []string{module + "/cmd/kvferry"}}
		}, []string{"bench or its tests import cmd/kvferry"}},
		{"daemon on benchmarks", func(g graph) {
			pkg(g, "bench/wan")
			pkg(g, "internal/daemon", module+"/bench/wan")
		}, []string{"internal/daemon imports bench/wan"}},
		{"testing", func(g graph) { pkg(g, "kvstore", "testing") }, []string{"kvstore imports testing (kvstore -> testing): testing is never in production code"}},
		{"testing in a helper", func(g graph) { pkg(g, "transfer/transfertest", "testing") }, nil},
		{"a helper in production", func(g graph) {
			pkg(g, "transfer/transfertest")
			pkg(g, "transfer", module+"/transfer/transfertest")
		}, []string{"only tests import helpers for tests"}},
		{"no row", func(g graph) { pkg(g, "internal/utils") }, []string{"internal/utils has no row"}},
		{"planned row", func(g graph) { pkg(g, "planner/plannertest") }, []string{"planner/plannertest exists: drop the mark"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := std("math", "os", "fmt", "testing")
			c.build(g)
			got := g.check(rules)
			if len(got) != len(c.want) {
				t.Fatalf("breaches:\n%s\nwant %d", strings.Join(got, "\n"), len(c.want))
			}
			for i, want := range c.want {
				if !slices.ContainsFunc(got, func(b string) bool { return strings.Contains(b, want) }) {
					t.Errorf("breach %d: none has %q:\n%s", i, want, strings.Join(got, "\n"))
				}
			}
		})
	}
}

func TestClockUses(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "x.go", "package p\nimport \"time\"\nvar d = time.Second\nvar n = time.Now()\nvar f = time.Since\n", parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"x.go:4:9: time.Now", "x.go:5:9: time.Since"}
	if diff := cmp.Diff(want, clockUses(fset, file)); diff != "" {
		t.Error(diff)
	}
}
