// Package policy reads the policy file and answers what it allows: which regions may pull which tenants, which callers
// may ask a daemon for what, and what a tenant may take up.
//
// # Usage
//
//	p, err := policy.Parse(data)
//	if d := p.Pull("eu-west", "acme"); !d.Allowed {
//		log.Print(d.Rule) // the rule that denied it, "" where none matched
//	}
//
// A file is YAML, and strict:
//
//	version: 1
//	rules:                      # regions that pull; the first rule that matches decides, what none matches is denied
//	  - name: acme-in-europe
//	    regions: ["eu-*"]
//	    tenants: [acme]
//	    decision: allow
//	callers:                    # certificates that call over TCP; the same order, the same denial
//	  - name: proxies
//	    nodes: ["proxy-*"]
//	    regions: ["*"]
//	    tenants: ["*"]
//	    calls: [migrate, observe]
//	    decision: allow
//	limits:                     # the first that matches a tenant holds; what none matches is unlimited
//	  - name: acme
//	    tenants: [acme]
//	    bytes_at_rest: 107374182400
//	    max_rate: 500000000
//
// A pattern is a whole name, or the beginning of one and "*". "" is the default tenant, which "*" matches too.
//
// # Concurrency
//
// A [Policy] does not change after [Parse] and may be used by several goroutines.
//
// # Limitations
//
// A file has at most 256 KiB, 1,024 entries a section and 256 patterns a list; it may not use anchors, aliases, tags or
// several documents. Rules are looked through in order: a decision costs their number.
package policy
