package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const example = `
version: 1
rules:
  - {name: not-bob, regions: ["*"], tenants: [bob], decision: deny}
  - {name: acme-in-europe, regions: ["eu-*", uk], tenants: [acme, "acme-*"], decision: allow}
  - name: default-anywhere
    regions: ["*"]
    tenants: [""]
    decision: allow
callers:
  - {name: proxies, nodes: ["proxy-*"], regions: [eu-west], tenants: ["acme*"], calls: [migrate, observe], decision: allow}
  - {name: nobody-else-moves, nodes: ["*"], regions: ["*"], tenants: ["*"], calls: [migrate], decision: deny}
  - {name: all-look, nodes: ["*"], regions: ["*"], tenants: ["*"], calls: [observe], decision: allow}
limits:
  - {name: acme, tenants: ["acme*"], bytes_at_rest: 1000, max_rate: 5}
`

func mustParse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What YAML takes for a number or for nothing is no name: a tenant 007 would be "7", and an entry left empty the default tenant.
func TestParseRefusesWhatIsNotText(t *testing.T) {
	const file = "version: 1\nrules:\n  - name: x\n    regions: [%s]\n    tenants: %s\n    decision: deny\n"
	for _, entry := range []string{"007", "0x10", "1_000", "1.0", "1.50", "+1", "0o17", "null", "~", "true", ".inf"} {
		for _, text := range []string{fmt.Sprintf(file, "eu", "["+entry+"]"), fmt.Sprintf(file, entry, "[a]"), fmt.Sprintf(file, "eu", "\n      - "+entry)} {
			if p, err := Parse([]byte(text)); err == nil {
				t.Errorf("%q is taken as %q", entry, p.Rules[0])
			} else if !strings.Contains(err.Error(), "in quotes") {
				t.Errorf("%q: %v, want how to write it", entry, err)
			}
		}
		p, err := Parse(fmt.Appendf(nil, file, "eu", `["`+entry+`"]`))
		if err != nil || p.Rules[0].Tenants[0] != entry {
			t.Errorf("%q in quotes: %+v, %v", entry, p, err)
		}
	}
	if p, err := Parse(fmt.Appendf(nil, file, "eu", "\n      -\n      - a")); err == nil {
		t.Errorf("an empty entry is taken as %q", p.Rules[0].Tenants)
	}
}

// The first rule that matches decides, and what none matches is denied.
func TestPull(t *testing.T) {
	p := mustParse(t, example)
	for _, tc := range []struct {
		region, tenant string
		want           Decision
	}{
		{"eu-west", "acme", Decision{true, "acme-in-europe"}},
		{"uk", "acme-2", Decision{true, "acme-in-europe"}},
		{"uk2", "acme", Decision{}},
		{"eu-", "acme", Decision{true, "acme-in-europe"}},
		{"eu", "acme", Decision{}},
		{"EU-west", "acme", Decision{}},
		{"us", "acme", Decision{}},
		{"us", "", Decision{true, "default-anywhere"}},
		{"", "", Decision{true, "default-anywhere"}},
		{"eu-west", "bob", Decision{false, "not-bob"}},
		{"eu-west", "Acme", Decision{}},
		{"eu-west", "unknown", Decision{}},
	} {
		if got := p.Pull(tc.region, tc.tenant); got != tc.want {
			t.Errorf("Pull(%q, %q) = %+v, want %+v", tc.region, tc.tenant, got, tc.want)
		}
	}
	var none *Policy
	if d := none.Pull("anywhere", "any"); !d.Allowed {
		t.Error("without a file everything is allowed")
	}
	if d := mustParse(t, "version: 1").Pull("eu", "t"); d.Allowed {
		t.Error("a file without rules allows something")
	}
}

func TestCall(t *testing.T) {
	p := mustParse(t, example)
	for _, tc := range []struct {
		node, region string
		call         Call
		tenant       string
		want         Decision
	}{
		{"proxy-1", "eu-west", Migrate, "acme", Decision{true, "proxies"}},
		{"proxy-1", "us", Migrate, "acme", Decision{false, "nobody-else-moves"}},
		{"proxy-1", "eu-west", Migrate, "bob", Decision{false, "nobody-else-moves"}},
		{"alice", "us", Observe, "bob", Decision{true, "all-look"}},
		{"alice", "us", Call("other"), "bob", Decision{}},
	} {
		if got := p.Call(tc.node, tc.region, tc.call, tc.tenant); got != tc.want {
			t.Errorf("Call(%q, %q, %q, %q) = %+v, want %+v", tc.node, tc.region, tc.call, tc.tenant, got, tc.want)
		}
	}
	for _, tc := range []struct {
		node string
		call Call
		want bool
	}{{"proxy-1", Migrate, true}, {"alice", Migrate, false}, {"alice", Observe, true}} {
		if got := p.CallAny(tc.node, "eu-west", tc.call); got.Allowed != tc.want {
			t.Errorf("CallAny(%q, %q) = %+v, want %v", tc.node, tc.call, got, tc.want)
		}
	}
	var none *Policy
	if !none.Call("x", "y", Migrate, "z").Allowed || !none.CallAny("x", "y", Migrate).Allowed {
		t.Error("without a file every call is allowed")
	}
}

// CallAny is Call over all tenants: held against every tenant of a small alphabet.
func TestCallAnyBruteForce(t *testing.T) {
	tenants := []string{"", "a", "b", "ab", "zz"}
	lists := [][]string{{"a"}, {"a*"}, {"*"}, {"", "b"}}
	for _, first := range lists {
		for _, second := range lists {
			for bits := range 4 {
				outcome := func(bit int) Outcome {
					if bits&bit != 0 {
						return Allow
					}
					return Deny
				}
				p := &Policy{Version: 1, Callers: []Caller{
					{Name: "1", Nodes: []string{"*"}, Regions: []string{"*"}, Tenants: first, Calls: Calls(), Decision: outcome(1)},
					{Name: "2", Nodes: []string{"*"}, Regions: []string{"*"}, Tenants: second, Calls: Calls(), Decision: outcome(2)},
				}}
				any := false
				for _, tenant := range tenants {
					any = any || p.Call("n", "r", Observe, tenant).Allowed
				}
				got := p.CallAny("n", "r", Observe).Allowed
				// A rule that an earlier one hides but for nothing it names may be counted: it gives a right to no tenant's data.
				hidden := first[0] == "*" && outcome(1) == Deny // nothing is left of the second
				if any && !got || got && hidden {
					t.Errorf("tenants %q %v, then %q %v: CallAny %v, some tenant %v", first, outcome(1), second, outcome(2), got, any)
				}
			}
		}
	}
}

func TestLimit(t *testing.T) {
	p := mustParse(t, example)
	if l, ok := p.Limit("acme-x"); !ok || l.BytesAtRest != 1000 || l.MaxRate != 5 {
		t.Errorf("limit %+v, %v", l, ok)
	}
	if _, ok := p.Limit("bob"); ok {
		t.Error("a tenant that no limit names is limited")
	}
}

// Every fault is named by field, value and what is allowed.
func TestParseRefuses(t *testing.T) {
	rule := func(s string) string { return "version: 1\nrules: [" + s + "]" }
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "policy version = 0: must be 1"},
		{"version", "version: 2", "policy version = 2: must be 1"},
		{"unknown key", "version: 1\nrule: []", "unknown field"},
		{"unknown key of a rule", rule(`{name: a, region: [b]}`), "unknown field"},
		{"no name", rule(`{regions: ["*"], tenants: ["*"], decision: allow}`), `rules[0].name = "": must be 1 to 64`},
		{"twice", rule(`{name: a, regions: ["*"], tenants: ["*"], decision: allow}, {name: a, regions: ["*"], tenants: ["*"], decision: allow}`), `rules[1].name = "a": must be different`},
		{"no regions", rule(`{name: a, tenants: ["*"], decision: allow}`), "rules[0].regions = 0 patterns: must be 1 to 256"},
		{"no tenants", rule(`{name: a, regions: ["*"], decision: allow}`), "rules[0].tenants = 0 patterns"},
		{"star inside", rule(`{name: a, regions: ["e*u"], tenants: ["*"], decision: allow}`), `rules[0].regions[0] = "e*u"`},
		{"two stars", rule(`{name: a, regions: ["e**"], tenants: ["*"], decision: allow}`), `rules[0].regions[0] = "e**"`},
		{"empty region", rule(`{name: a, regions: [""], tenants: ["*"], decision: allow}`), `rules[0].regions[0] = ""`},
		{"slash", rule(`{name: a, regions: ["a/b"], tenants: ["*"], decision: allow}`), `rules[0].regions[0] = "a/b"`},
		{"long tenant", rule(`{name: a, regions: ["*"], tenants: ["` + strings.Repeat("x", 129) + `"], decision: allow}`), "at most 128 bytes"},
		{"control", rule(`{name: a, regions: ["*"], tenants: ["a\tb"], decision: allow}`), "rules[0].tenants[0]"},
		{"decision", rule(`{name: a, regions: ["*"], tenants: ["*"], decision: maybe}`), `rules[0].decision = "maybe": must be "allow" or "deny"`},
		{"no decision", rule(`{name: a, regions: ["*"], tenants: ["*"]}`), `rules[0].decision = ""`},
		{"call", "version: 1\ncallers: [{name: a, nodes: [b], regions: [c], tenants: [d], calls: [steal], decision: allow}]", `callers[0].calls[0] = "steal"`},
		{"no calls", "version: 1\ncallers: [{name: a, nodes: [b], regions: [c], tenants: [d], decision: allow}]", `callers[0].calls = 0 calls`},
		{"negative", "version: 1\nlimits: [{name: a, tenants: [b], bytes_at_rest: -1}]", "limits[0].bytes_at_rest = -1"},
		{"rate", "version: 1\nlimits: [{name: a, tenants: [b], max_rate: 2000000000000000}]", "limits[0].max_rate"},
		{"anchor", "version: 1\nrules: &a []\n", "anchors"},
		{"alias bomb", "a: &a [x,x]\nb: [*a,*a]", "anchors"},
		{"tag", "version: !!int 1", "tags"},
		{"deep", "version: " + strings.Repeat("[", 100_000), "nested less deeply"},
		{"entries on a line", strings.Repeat("- ", 100_000), "one list entry a line"},
		{"two documents", "version: 1\n...\nversion: 1", "one document"},
		{"large", strings.Repeat("#", MaxBytes+1), "at most 262144"},
		{"bytes", "version: 1 # \xff", "UTF-8"},
		{"many", "version: 1\nlimits:\n" + strings.Repeat(" - {}\n", 1025), "limits = 1025 entries: must be at most 1024"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Parse([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) || p != nil {
				t.Errorf("got %v, %.300v; want an error with %q", p, err, tc.want)
			}
		})
	}
}

// Everything wrong is told at once.
func TestValidateJoins(t *testing.T) {
	_, err := Parse([]byte("version: 1\nrules: [{}]\nlimits: [{}]"))
	var n int
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the join itself is looked at
		n = len(joined.Unwrap())
	}
	if _, ok := errors.AsType[*FieldError](err); !ok || n != 6 {
		t.Errorf("%d faults in %v, want 6", n, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("version: 1"))
	f.Add([]byte("version: 1\nrules: [{name: a, regions: [\"*\"], tenants: [\"\"], decision: allow}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? - - : : [{}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err != nil {
			if p != nil || err.Error() == "" {
				t.Fatalf("%q: %v, %v", data, p, err)
			}
			return
		}
		text, err := yaml.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil || cmp.Diff(p, again, same) != "" {
			t.Fatalf("%q reads as %+v, which writes %q: %v %s", data, p, text, err, cmp.Diff(p, again, same))
		}
		_ = fmt.Sprint(p.Pull("eu", "acme"), p.Call("n", "r", Migrate, "t"), p.CallAny("n", "r", Observe))
	})
}

// same tells lists that are empty from none as little as the format does.
var same = cmpopts.EquateEmpty()
