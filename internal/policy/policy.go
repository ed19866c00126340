package policy

import (
	"slices"
	"strings"
)

// Version is the one version of the file that there is.
const Version = 1

// Call is what a caller over TCP may be allowed to do.
type Call string

// Calls.
const (
	// Migrate moves sessions: it starts, claims, cancels and attaches to migrations into the daemon.
	Migrate Call = "migrate"
	// Observe reads: plans, migrations, sessions, links, status.
	Observe Call = "observe"
)

// Calls lists them all.
func Calls() []Call { return []Call{Migrate, Observe} }

// Outcome is what a rule decides.
type Outcome string

// Outcomes.
const (
	Allow Outcome = "allow"
	Deny  Outcome = "deny"
)

// Policy is a policy file. A nil *Policy is that of a daemon without a file: everything is allowed, nothing is limited.
type Policy struct {
	// Version is 1.
	Version int `yaml:"version" json:"version"`
	// Rules say which regions may pull which tenants.
	Rules []Rule `yaml:"rules" json:"rules"`
	// Callers say who may call over TCP.
	Callers []Caller `yaml:"callers" json:"callers"`
	// Limits bound tenants.
	Limits []Limit `yaml:"limits" json:"limits"`
}

// Rule decides for the regions and tenants that it names.
type Rule struct {
	// Name is for people and audit lines: 1 to 64 of [a-zA-Z0-9._-], different from those of the other rules.
	Name string `yaml:"name" json:"name"`
	// Regions are patterns of the pulling node's region, as in its certificate; at least one.
	Regions []string `yaml:"regions" json:"regions"`
	// Tenants are patterns of the session's tenant; at least one.
	Tenants []string `yaml:"tenants" json:"tenants"`
	// Decision is allow or deny.
	Decision Outcome `yaml:"decision" json:"decision"`
}

// Caller decides for certificates that call over TCP.
type Caller struct {
	// Name is as a Rule's.
	Name string `yaml:"name" json:"name"`
	// Nodes and Regions are patterns of what the caller's certificate says; at least one each.
	Nodes   []string `yaml:"nodes" json:"nodes"`
	Regions []string `yaml:"regions" json:"regions"`
	// Tenants are patterns of the tenant that the call is about; at least one.
	Tenants []string `yaml:"tenants" json:"tenants"`
	// Calls are what the decision is about; at least one.
	Calls []Call `yaml:"calls" json:"calls"`
	// Decision is allow or deny.
	Decision Outcome `yaml:"decision" json:"decision"`
}

// Limit bounds the tenants that it names, each by itself.
type Limit struct {
	// Name is as a Rule's.
	Name string `yaml:"name" json:"name"`
	// Tenants are patterns; at least one.
	Tenants []string `yaml:"tenants" json:"tenants"`
	// BytesAtRest bounds what a tenant's blocks take of each arena, bytes. What is less than a block counts as one. Default 0: no bound.
	BytesAtRest int64 `yaml:"bytes_at_rest" json:"bytes_at_rest"`
	// MaxRate bounds what leaves the node for a tenant, page bytes a second as they travel, over all links, up to 1e15. Default 0: no
	// bound.
	MaxRate int64 `yaml:"max_rate" json:"max_rate"`
}

// Decision is an answer, with its reason.
type Decision struct {
	// Allowed says which.
	Allowed bool
	// Rule is the name of the entry that decided; "" where none matched, or where there is no policy.
	Rule string
}

// Pull decides whether a node of region may pull what is of tenant.
func (p *Policy) Pull(region, tenant string) Decision {
	if p == nil {
		return Decision{Allowed: true}
	}
	for i := range p.Rules {
		if r := &p.Rules[i]; matches(r.Regions, region) && matches(r.Tenants, tenant) {
			return Decision{r.Decision == Allow, r.Name}
		}
	}
	return Decision{}
}

// Call decides whether the holder of a certificate of node and region may make a call about tenant.
func (p *Policy) Call(node, region string, call Call, tenant string) Decision {
	if p == nil {
		return Decision{Allowed: true}
	}
	for i := range p.Callers {
		c := &p.Callers[i]
		if slices.Contains(c.Calls, call) && matches(c.Nodes, node) && matches(c.Regions, region) && matches(c.Tenants, tenant) {
			return Decision{c.Decision == Allow, c.Name}
		}
	}
	return Decision{}
}

// CallAny decides about a call that is of no tenant: it is allowed when the same call is, for some tenant.
func (p *Policy) CallAny(node, region string, call Call) Decision {
	if p == nil {
		return Decision{Allowed: true}
	}
	for i := range p.Callers {
		c := &p.Callers[i]
		if !slices.Contains(c.Calls, call) || !matches(c.Nodes, node) || !matches(c.Regions, region) {
			continue
		}
		if c.Decision == Allow {
			return Decision{true, c.Name}
		}
		if slices.Contains(c.Tenants, "*") { // nothing after it is looked at
			return Decision{false, c.Name}
		}
	}
	return Decision{}
}

// Limit returns what bounds tenant, and false when nothing does.
func (p *Policy) Limit(tenant string) (Limit, bool) {
	if p == nil {
		return Limit{}, false
	}
	for i := range p.Limits {
		if matches(p.Limits[i].Tenants, tenant) {
			return p.Limits[i], true
		}
	}
	return Limit{}, false
}

// matches reports whether one of the patterns does.
func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if start, prefix := strings.CutSuffix(p, "*"); p == name || prefix && strings.HasPrefix(name, start) {
			return true
		}
	}
	return false
}
