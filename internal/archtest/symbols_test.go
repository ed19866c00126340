package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// symbols is what the repository's code declares.
type symbols struct {
	// packages maps a package's name to its top-level names.
	packages map[string]map[string]bool
	// members maps a type's name, of whatever package, to its fields and methods.
	members map[string]map[string]bool
	// names are all of the above, what .proto files declare, and the commands.
	names map[string]bool
	// tests are the names of test functions.
	tests map[string]bool
}

func newSymbols() symbols {
	return symbols{
		packages: map[string]map[string]bool{}, members: map[string]map[string]bool{},
		names: map[string]bool{}, tests: map[string]bool{},
	}
}

// readSymbols parses the whole repository.
func readSymbols(t *testing.T, dir string) symbols {
	t.Helper()
	s := newSymbols()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != dir && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go":
			// A file that does not parse is the compiler's business; what could be read still counts.
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if file == nil {
				return err
			}
			if strings.HasSuffix(name, "_test.go") {
				s.addTests(file)
				return nil
			}
			s.addFile(file, filepath.Base(filepath.Dir(path)))
		case ".proto":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s.addProto(string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s symbols) addTests(file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			s.tests[f.Name.Name] = true
		}
	}
}

// addFile adds a file's declarations. A command goes by its folder's name, since all are called main.
func (s symbols) addFile(file *ast.File, folder string) {
	name := file.Name.Name
	if name == "main" {
		name = folder
	}
	s.names[name] = true
	top := s.packages[name]
	if top == nil {
		top = map[string]bool{}
		s.packages[name] = top
	}
	add := func(id string) { top[id], s.names[id] = true, true }
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(d.Name.Name)
			} else {
				s.member(receiver(d.Recv.List[0].Type), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						add(id.Name)
					}
				case *ast.TypeSpec:
					add(spec.Name.Name)
					s.addType(spec)
				}
			}
		}
	}
}

func (s symbols) addType(spec *ast.TypeSpec) {
	var fields *ast.FieldList
	switch t := spec.Type.(type) {
	case *ast.StructType:
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return
	}
	for _, f := range fields.List {
		for _, id := range f.Names {
			s.member(spec.Name.Name, id.Name)
		}
		if len(f.Names) == 0 { // embedded
			s.member(spec.Name.Name, receiver(f.Type))
		}
	}
}

func (s symbols) member(typ, name string) {
	if s.members[typ] == nil {
		s.members[typ] = map[string]bool{}
	}
	s.members[typ][name], s.names[name] = true, true
}

// receiver returns the name of a type, without star, type arguments and package.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var protoLine = regexp.MustCompile(`^\s*(?:(service|message|enum)\s+(\w+)\s*\{(\})?|rpc\s+(\w+)\s*\(|(?:repeated\s+|optional\s+)?[\w.<>, ]+?\s+(\w+)\s*=\s*\d+;|(\w+)\s*=\s*\d+;)`)

// addProto adds services with their calls and messages and enums with their fields and values.
func (s symbols) addProto(text string) {
	var typ string
	for line := range strings.Lines(text) {
		m := protoLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[2] != "" {
			typ = m[2]
			s.names[typ] = true
			if s.members[typ] == nil {
				s.members[typ] = map[string]bool{}
			}
			continue
		}
		for _, id := range m[4:] {
			if id != "" {
				s.member(typ, id)
			}
		}
	}
}
