package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a file.
const (
	// MaxBytes bounds the file.
	MaxBytes    = 256 << 10
	maxEntries  = 1024
	maxPatterns = 256
	maxPattern  = 128
	maxDepth    = 8
	maxRate     = 1e15
)

// FieldError is one thing wrong with a policy.
type FieldError struct {
	// Field is where it stands, such as "rules[2].regions[0]".
	Field string
	// Value is what stands there.
	Value string
	// Allowed says what may, and so how to fix it.
	Allowed string
}

// Error names the field, the value and what is allowed.
func (e *FieldError) Error() string {
	return fmt.Sprintf("policy %s = %.200s: must be %s", e.Field, e.Value, e.Allowed)
}

// Parse reads a policy file. Errors: every *[FieldError] joined, or one that shows where the YAML is wrong.
func Parse(data []byte) (*Policy, error) {
	if len(data) > MaxBytes {
		return nil, &FieldError{"file", fmt.Sprintf("%d bytes", len(data)), fmt.Sprintf("at most %d", MaxBytes)}
	}
	if !utf8.Valid(data) {
		return nil, &FieldError{"file", "other bytes", "UTF-8"}
	}
	if err := plain(data); err != nil {
		return nil, err
	}
	if err := quoted(data); err != nil {
		return nil, err
	}
	var p Policy
	if err := yaml.UnmarshalWithOptions(data, &p, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &p, nil
}

// plain refuses what a policy needs none of and a decoder may spend any time and memory on: references, tags, deep nesting.
func plain(data []byte) error {
	depth, line, onLine := 0, 0, 0
	for _, t := range lexer.Tokenize(string(data)) {
		if t.Position != nil && t.Position.Line != line {
			line, onLine = t.Position.Line, 0
		}
		at := func(allowed string) error {
			return &FieldError{fmt.Sprintf("line %d", line), fmt.Sprintf("%.32q", t.Value), allowed}
		}
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return at("written out: anchors, aliases and merges are not allowed")
		case token.TagType, token.DirectiveType, token.MappingKeyType:
			return at("plain: tags, directives and complex keys are not allowed")
		case token.DocumentEndType:
			return at("one document")
		case token.MappingStartType, token.SequenceStartType:
			if depth++; depth > maxDepth {
				return at("nested less deeply")
			}
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType:
			if onLine++; onLine > 2 {
				return at("one list entry a line")
			}
		default:
		}
	}
	return nil
}

// quoted refuses list entries that YAML takes for something else than text: a tenant 007 would become "7", and an entry that was left
// empty the default tenant.
func quoted(data []byte) error {
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	var u unquoted
	for _, doc := range f.Docs {
		if doc.Body != nil {
			ast.Walk(&u, doc.Body)
		}
	}
	return errors.Join(u.errs...)
}

// unquoted collects such entries.
type unquoted struct{ errs []error }

// Visit looks at lists.
func (u *unquoted) Visit(n ast.Node) ast.Visitor {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return u
	}
	for _, v := range list.Values {
		switch v.Type() {
		case ast.NullType, ast.IntegerType, ast.FloatType, ast.BoolType, ast.InfinityType, ast.NanType:
			line := 0
			if t := v.GetToken(); t != nil && t.Position != nil {
				line = t.Position.Line
			}
			u.errs = append(u.errs, &FieldError{fmt.Sprintf("line %d", line), fmt.Sprintf("%.32q", v.String()), `text: put names that look like numbers, true, false or null in quotes, and write "" for the default tenant`})
		default:
		}
	}
	return u
}

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// validator collects what is wrong.
type validator struct{ errs []error }

func (v *validator) check(ok bool, field, value, allowed string) {
	if !ok {
		v.errs = append(v.errs, &FieldError{field, value, allowed})
	}
}

func (v *validator) size(section string, n int) {
	v.check(n <= maxEntries, section, fmt.Sprint(n, " entries"), "at most 1024 entries")
}

// name checks an entry's name against those before it.
func (v *validator) name(at, name string, seen map[string]bool) {
	v.check(namePattern.MatchString(name), at+".name", fmt.Sprintf("%q", name), "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'")
	v.check(!seen[name], at+".name", fmt.Sprintf("%q", name), "different from the other names of its section")
	seen[name] = true
}

// patterns checks a list. Names are tenants, which may be empty, or those of certificates.
func (v *validator) patterns(field string, list []string, tenants bool) {
	v.check(len(list) >= 1 && len(list) <= maxPatterns, field, fmt.Sprint(len(list), " patterns"), `1 to 256 patterns; "*" matches all`)
	for i, p := range list {
		at, start := fmt.Sprintf("%s[%d]", field, i), strings.TrimSuffix(p, "*")
		ok := len(p) <= maxPattern && !strings.Contains(start, "*") && utf8.ValidString(p)
		for _, r := range start {
			ok = ok && (tenants && r >= ' ' && r != 0x7f || namePattern.MatchString(string(r)))
		}
		if ok = ok && (tenants || p != ""); !ok {
			what := "a name of a-z, A-Z, 0-9, '.', '_' and '-', or its beginning and one '*'"
			if tenants {
				what = "a tenant's name without control characters, \"\" for the default tenant, or the beginning of a name and one '*'"
			}
			v.check(false, at, fmt.Sprintf("%q", p), what+", of at most 128 bytes")
		}
	}
}

func (v *validator) outcome(at string, o Outcome) {
	v.check(o == Allow || o == Deny, at+".decision", fmt.Sprintf("%q", string(o)), `"allow" or "deny"`)
}

// Validate reports everything that is wrong with p, joined; each part is a *[FieldError].
func (p *Policy) Validate() error {
	v := &validator{}
	v.check(p.Version == Version, "version", fmt.Sprint(p.Version), "1")
	v.size("rules", len(p.Rules))
	v.size("callers", len(p.Callers))
	v.size("limits", len(p.Limits))
	if len(v.errs) > 0 {
		return errors.Join(v.errs...)
	}
	seen := map[string]bool{}
	for i, r := range p.Rules {
		at := fmt.Sprintf("rules[%d]", i)
		v.name(at, r.Name, seen)
		v.patterns(at+".regions", r.Regions, false)
		v.patterns(at+".tenants", r.Tenants, true)
		v.outcome(at, r.Decision)
	}
	seen = map[string]bool{}
	for i, c := range p.Callers {
		at := fmt.Sprintf("callers[%d]", i)
		v.name(at, c.Name, seen)
		v.patterns(at+".nodes", c.Nodes, false)
		v.patterns(at+".regions", c.Regions, false)
		v.patterns(at+".tenants", c.Tenants, true)
		v.check(len(c.Calls) >= 1 && len(c.Calls) <= 16, at+".calls", fmt.Sprint(len(c.Calls), " calls"), `at least one of "migrate" and "observe"`)
		for j, call := range c.Calls {
			v.check(call == Migrate || call == Observe, fmt.Sprintf("%s.calls[%d]", at, j), fmt.Sprintf("%q", string(call)), `"migrate" or "observe"`)
		}
		v.outcome(at, c.Decision)
	}
	seen = map[string]bool{}
	for i, l := range p.Limits {
		at := fmt.Sprintf("limits[%d]", i)
		v.name(at, l.Name, seen)
		v.patterns(at+".tenants", l.Tenants, true)
		v.check(l.BytesAtRest >= 0, at+".bytes_at_rest", fmt.Sprint(l.BytesAtRest), "bytes, or 0 for no bound")
		v.check(l.MaxRate >= 0 && l.MaxRate <= maxRate, at+".max_rate", fmt.Sprint(l.MaxRate), "bytes a second, 1 to 1e15, or 0 for no bound")
	}
	return errors.Join(v.errs...)
}
