package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign are words in backticks that look like paths of ours and are not.
var foreign = []string{"kvferry/1"}

// pathExts end a name that is a file even without a slash.
var pathExts = []string{".go", ".proto", ".md", ".yaml", ".yml", ".mod", ".sum", ".txt"}

var (
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	dotted    = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$`)
	plainName = regexp.MustCompile(`^[A-Za-z_]\w*$`)
	testName  = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z_]\w*$`)
	pathName  = regexp.MustCompile(`^[\w.*-]+(/[\w.*-]+)*/?(\.\.\.)?$`)
)

// TestNames: what ARCHITECTURE.md and SECURITY.md name in backticks exists: paths, symbols, tests.
func TestNames(t *testing.T) {
	t.Parallel()
	s := readSymbols(t, root)
	exists := func(path string) bool {
		found, err := filepath.Glob(filepath.Join(root, path))
		return err == nil && len(found) > 0
	}
	for _, doc := range []string{"ARCHITECTURE.md", "SECURITY.md"} {
		b, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range checkNames(string(b), s, exists) {
			t.Errorf("%s:%s", doc, fault)
		}
	}
}

// TestSecurityClaims: each claim of SECURITY.md names the test that holds it. That the test exists is TestNames's.
func TestSecurityClaims(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	faults, claims := checkClaims(string(b))
	for _, f := range faults {
		t.Errorf("SECURITY.md:%s", f)
	}
	if claims < 30 {
		t.Errorf("%d claims are found, want 30 and more: are they in tables \"| claim | test |\"?", claims)
	}
}

// checkClaims returns the rows of tables "| claim | test |" that name no test, and how many rows there are.
func checkClaims(text string) (faults []string, claims int) {
	in, n := false, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case line == "| claim | test |":
			in = true
			continue
		case !strings.HasPrefix(line, "|"):
			in = false
		}
		if !in || strings.HasPrefix(line, "|---") {
			continue
		}
		claims++
		cells := strings.Split(strings.Trim(line, "|"), "|")
		named := false
		for _, m := range codeSpan.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			named = named || testName.MatchString(m[1])
		}
		if !named || len(cells) != 2 {
			faults = append(faults, fmt.Sprintf("%d: no test: %s", n, line))
		}
	}
	return faults, claims
}

func TestCheckClaims(t *testing.T) {
	t.Parallel()
	faults, claims := checkClaims("# x\n| claim | test |\n|---|---|\n| good | `TestX`, `FuzzY` |\n| bad | `testX` |\n| worse | TestX |\n\n| other | table |\n|---|---|\n| a | b |\n")
	if claims != 3 || len(faults) != 2 || !strings.HasPrefix(faults[0], "5: ") || !strings.HasPrefix(faults[1], "6: ") {
		t.Errorf("%d claims, faults %q", claims, faults)
	}
}

// checkNames returns every name in a text's backticks that does not exist.
func checkNames(text string, s symbols, exists func(string) bool) []string {
	// Blocks of code are pictures and commands; their lines are kept so that numbers stay right.
	text = codeBlock.ReplaceAllStringFunc(text, func(b string) string { return strings.Repeat("\n", strings.Count(b, "\n")) })
	var faults []string
	n := 0
	for line := range strings.Lines(text) {
		n++
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			if why := checkName(m[1], s, exists); why != "" {
				faults = append(faults, fmt.Sprintf("%d: `%s`: %s", n, m[1], why))
			}
		}
	}
	return faults
}

// checkName says what is wrong with one name, or nothing. What is no name at all (a command, a route) is fine.
func checkName(word string, s symbols, exists func(string) bool) string {
	word = strings.TrimSuffix(word, "()")
	word = strings.NewReplacer("(*", "", ")", "").Replace(strings.TrimPrefix(word, "*"))
	isFile := slices.ContainsFunc(pathExts, func(e string) bool { return strings.HasSuffix(word, e) })
	switch {
	case slices.Contains(foreign, word):
		return ""
	case pathName.MatchString(word) && (strings.Contains(word, "/") || isFile):
		path := strings.TrimSuffix(strings.TrimSuffix(word, "..."), "/")
		if exists(path) {
			return ""
		}
		if r, ok := ruleFor(rules, path); ok && r.planned {
			return ""
		}
		return "no such file or folder"
	case testName.MatchString(word):
		if s.tests[word] || s.names[word] {
			return ""
		}
		return "no such test"
	case dotted.MatchString(word):
		return checkDotted(strings.Split(word, "."), s)
	case plainName.MatchString(word):
		if s.names[word] {
			return ""
		}
		return "no package, declaration, field or message of that name"
	}
	return ""
}

// checkDotted resolves package.Name, package.Type.Member and Type.Member.
func checkDotted(parts []string, s symbols) string {
	top, ok := s.packages[parts[0]]
	if ok && !(len(parts) == 2 && s.members[parts[0]][parts[1]]) { // a type may be called as a package
		if !top[parts[1]] {
			return fmt.Sprintf("package %s declares no %s", parts[0], parts[1])
		}
		parts = parts[1:]
	}
	for len(parts) >= 2 {
		typ := parts[0]
		members, ok := s.members[typ]
		switch {
		case !ok && !s.names[typ]:
			return fmt.Sprintf("no package or type is called %s", typ)
		case !members[parts[1]]:
			return fmt.Sprintf("%s has no field, method or call %s", typ, parts[1])
		}
		parts = parts[1:]
		if len(parts) == 1 {
			return ""
		}
	}
	return ""
}

func TestCheckNames(t *testing.T) {
	t.Parallel()
	s := newSymbols()
	s.packages["kvstore"] = map[string]bool{"Arena": true, "PageSum": true}
	s.member("Arena", "WritePage")
	s.member("migration", "mu")
	s.addProto("service MigrationService {\n  rpc Plan(PlanRequest) returns (PlanResponse);\n}\nmessage Empty {}\nmessage Node {\n  string node_id = 1;\n  optional double x = 2;\n  repeated Node more = 3;\n}\nenum E {\n  E_A = 0;\n}\n")
	s.names["kvferryd"], s.tests["TestX"] = true, true
	exists := func(p string) bool { return p == "README.md" || p == "kvstore" || p == "proto" || p == "kvstore/*.go" }
	for _, c := range []struct {
		word string
		ok   bool
	}{
		{"kvstore.PageSum", true},
		{"kvstore.PageSum()", true},
		{"kvstore.Arena.WritePage", true},
		{"(*Arena).WritePage", true},
		{"*kvstore.Arena", true},
		{"Arena.WritePage", true},
		{"migration.mu", true},
		{"MigrationService.Plan", true},
		{"Node.node_id", true},
		{"Node.x", true},
		{"Node.more", true},
		{"E.E_A", true},
		{"node_id", true},
		{"kvferryd", true},
		{"README.md", true},
		{"kvstore/*.go", true},
		{"proto/...", true},
		{"planner/plannertest", true}, // planned
		{"TestX", true},
		{"/healthz", true},
		{"kvferry/1", true},
		{"make demo", true},
		{"--wan rtt=70ms", true},
		{"kvstore.Gone", false},
		{"kvstore.Arena.Gone", false},
		{"Arena.Gone", false},
		{"Gone.Plan", false},
		{"Empty.Gone", false},
		{"MigrationService.Gone", false},
		{"gone", false},
		{"gone.md", false},
		{"kvstore/gone.go", false},
		{"tranfser/codec", false},
		{"TestGone", false},
	} {
		faults := checkNames("text `"+c.word+"` text\n```\n`gone`\n```\n", s, exists)
		if (len(faults) == 0) != c.ok {
			t.Errorf("%s: faults %q, want none: %v", c.word, faults, c.ok)
		}
	}
}
