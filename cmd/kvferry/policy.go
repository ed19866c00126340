package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/internal/policy"
)

func (a *app) newPolicy() *cobra.Command {
	cmd := group("policy", "Check a policy file, and ask what it allows", a.newPolicyCheck())
	cmd.Long = `policy looks at the file that kvferryd's configuration names as policy: which regions may pull which tenants, who may call a
daemon over TCP, and what tenants may take up. It needs no daemon.`
	cmd.Example = `  kvferry policy check policy.yaml
  kvferry policy check policy.yaml --region us-east --tenant acme
  kvferry policy check policy.yaml --node proxy-1 --region us-east --tenant acme --call migrate`
	return cmd
}

// policyView is what a file says, and its answer where one is asked for.
type policyView struct {
	File     string          `json:"file"`
	Rules    int             `json:"rules"`
	Callers  int             `json:"callers"`
	Limits   int             `json:"limits"`
	Question *policyQuestion `json:"question,omitempty"`
}

// policyQuestion is a question with its answer.
type policyQuestion struct {
	Region  string        `json:"region"`
	Tenant  string        `json:"tenant"`
	Node    string        `json:"node,omitempty"`
	Call    string        `json:"call,omitempty"`
	Allowed bool          `json:"allowed"`
	Rule    string        `json:"rule"`
	Reason  string        `json:"reason"`
	Limit   *policy.Limit `json:"limit,omitempty"`
}

func (a *app) newPolicyCheck() *cobra.Command {
	var region, tenant, node, call string
	cmd := &cobra.Command{
		Use: "check FILE", Short: "Is FILE right? With --region and --tenant: allowed or denied, and by which rule?",
		Long: `check reads a policy file as kvferryd does and says what is wrong with it, all of it at once. With --region and --tenant it
answers whether a node of that region may pull that tenant's sessions; with --node and --call, too, whether the holder of that
certificate may make that call over TCP. The answer is in the output, not in the exit code.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("", "one file: kvferry policy check FILE", "%d files are named", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := readPolicyFile(args[0])
			if err != nil {
				return err
			}
			v := policyView{File: args[0], Rules: len(p.Rules), Callers: len(p.Callers), Limits: len(p.Limits)}
			asked := func(name string) bool { return cmd.Flags().Changed(name) }
			if asked("region") || asked("tenant") || asked("node") || asked("call") {
				q := &policyQuestion{Region: region, Tenant: tenant, Node: node, Call: call}
				if v.Question = q; !asked("region") || !asked("tenant") || asked("node") != asked("call") {
					return usagef("", "--region and --tenant, and for a caller --node and --call too", "the question is not whole")
				}
				if err := q.answer(p); err != nil {
					return err
				}
			}
			return a.print(v, v.table)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&region, "region", "", "region of the node that pulls, or of the caller, as in its certificate")
	fl.StringVar(&tenant, "tenant", "", `tenant of the session; "" is the default tenant`)
	fl.StringVar(&node, "node", "", "node id in the caller's certificate")
	fl.StringVar(&call, "call", "", "migrate or observe")
	complete(cmd, "call", string(policy.Migrate), string(policy.Observe))
	return cmd
}

func readPolicyFile(path string) (*policy.Policy, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &fault{Code: exitNotFound, Reason: "FILE_NOT_FOUND", Message: err.Error(), Fix: "name a policy file; docs/policy.md has an example"}
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	data, err := io.ReadAll(io.LimitReader(f, policy.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(data)
	if err != nil {
		return nil, &fault{Code: exitUsage, Reason: "INVALID_POLICY", Message: fmt.Sprintf("%s: %v", path, err), Fix: "correct the fields named above; docs/policy.md has each"}
	}
	return p, nil
}

func (q *policyQuestion) answer(p *policy.Policy) error {
	section, d := "rule", policy.Decision{}
	if q.Call == "" {
		d = p.Pull(q.Region, q.Tenant)
	} else {
		if c := policy.Call(q.Call); c != policy.Migrate && c != policy.Observe {
			return usagef(q.Call, "migrate or observe", "--call %q is not known", q.Call)
		}
		section, d = "caller", p.Call(q.Node, q.Region, policy.Call(q.Call), q.Tenant)
	}
	q.Allowed, q.Rule = d.Allowed, d.Rule
	q.Reason = fmt.Sprintf("%s %q is the first that matches", section, d.Rule)
	if d.Rule == "" {
		q.Reason = fmt.Sprintf("no %s matches, and what none matches is denied", section)
	}
	if l, ok := p.Limit(q.Tenant); ok {
		q.Limit = &l
	}
	return nil
}

func (v policyView) table(w io.Writer) {
	row(w, "file:", v.File)
	row(w, "holds:", fmt.Sprintf("%d rules, %d callers, %d limits", v.Rules, v.Callers, v.Limits))
	q := v.Question
	if q == nil {
		return
	}
	answer := "denied"
	if q.Allowed {
		answer = "allowed"
	}
	what := fmt.Sprintf("region %q pulls tenant %q", q.Region, q.Tenant)
	if q.Call != "" {
		what = fmt.Sprintf("node %q of region %q calls %s for tenant %q", q.Node, q.Region, q.Call, q.Tenant)
	}
	row(w, "question:", what)
	row(w, "answer:", answer+": "+q.Reason)
	if q.Limit != nil {
		var bounds []string
		if q.Limit.BytesAtRest > 0 {
			bounds = append(bounds, bytesText(q.Limit.BytesAtRest)+" of each arena")
		}
		if q.Limit.MaxRate > 0 {
			bounds = append(bounds, bytesText(q.Limit.MaxRate)+"/s out of each node")
		}
		row(w, "limit:", fmt.Sprintf("%s: %s", q.Limit.Name, dash(strings.Join(bounds, ", "))))
	}
}
