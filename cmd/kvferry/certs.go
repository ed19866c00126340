package main

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/internal/certs"
)

func (a *app) newCerts() *cobra.Command {
	cmd := group("certs", "Make a development authority and certificates for nodes and people", a.newCertsInit(), a.newCertsIssue())
	cmd.Long = `certs makes what mutual TLS needs: an authority, and certificates that it signs. A certificate carries a region and a node
id, by which nodes know one another. People who call a daemon over TCP need one too; give them a region and a name.

Keys are written with mode 0600 and nothing is overwritten. The authority's key, ca.key, is needed only to issue.`
	cmd.Example = `  kvferry certs init --dir certs
  kvferry certs issue --dir certs --region us-east --node us-1 --host us.example --host 10.0.0.7
  kvferry certs issue --dir certs --region us-east --node alice`
	return cmd
}

// certView is a certificate that was made.
type certView struct {
	CA       string   `json:"ca"`
	Cert     string   `json:"cert"`
	Key      string   `json:"key"`
	Identity string   `json:"identity"`
	Hosts    []string `json:"hosts"`
	NotAfter string   `json:"not_after"`
}

func (a *app) newCertsInit() *cobra.Command {
	var (
		dir, name string
		validity  time.Duration
	)
	cmd := &cobra.Command{
		Use: "init --dir DIR", Short: "Make an authority: DIR/ca.crt and DIR/ca.key", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return usagef("", "--dir DIR, a folder for ca.crt and ca.key", "no folder is named")
			}
			ca, err := certs.NewCA(name, validity)
			if err != nil {
				return err
			}
			if err := ca.Save(dir); err != nil {
				return err
			}
			v := certView{
				CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "ca.crt"), Key: filepath.Join(dir, "ca.key"),
				Hosts: []string{}, NotAfter: ca.Cert.NotAfter.UTC().Format(time.RFC3339),
			}
			return a.print(v, func(w io.Writer) {
				row(w, "authority:", v.CA)
				row(w, "key:", v.Key+" (keep it secret)")
				row(w, "until:", v.NotAfter)
				row(w, "next:", fmt.Sprintf("kvferry certs issue --dir %s --region REGION --node NODE --host HOST", dir))
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&dir, "dir", "", "folder to write to; made when it is not there")
	fl.StringVar(&name, "name", "kvferry development CA", "the authority's name, for people")
	fl.Var(newDuration(&validity, certs.DefaultCAValidity, time.Minute), "validity", "how long it lasts")
	return cmd
}

func (a *app) newCertsIssue() *cobra.Command {
	var (
		dir, region, node string
		hosts             []string
	)
	cmd := &cobra.Command{
		Use: "issue --dir DIR --region REGION --node NODE", Short: "Make a node's certificate: DIR/NODE.crt and DIR/NODE.key", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, f := range []struct{ name, value string }{{"dir", dir}, {"region", region}, {"node", node}} {
				if f.value == "" {
					return usagef("", "--dir DIR --region REGION --node NODE", "--%s is not given", f.name)
				}
			}
			if node == "ca" {
				return usagef(node, "another name", "node %q would overwrite the authority's files", node)
			}
			ca, err := certs.LoadCA(dir)
			if err != nil {
				return err
			}
			pair, err := ca.Issue(region, node, hosts...)
			if err != nil {
				return err
			}
			if err := pair.Save(dir); err != nil {
				return err
			}
			v := certView{
				CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, node+".crt"), Key: filepath.Join(dir, node+".key"),
				Identity: pair.Cert.URIs[0].String(), Hosts: append([]string{}, pair.Cert.DNSNames...), NotAfter: pair.Cert.NotAfter.UTC().Format(time.RFC3339),
			}
			for _, ip := range pair.Cert.IPAddresses {
				v.Hosts = append(v.Hosts, ip.String())
			}
			return a.print(v, func(w io.Writer) {
				row(w, "certificate:", v.Cert)
				row(w, "key:", v.Key+" (keep it secret)")
				row(w, "identity:", v.Identity)
				row(w, "hosts:", fmt.Sprint(v.Hosts))
				row(w, "until:", v.NotAfter)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&dir, "dir", "", "folder with ca.crt and ca.key, where the certificate is written too")
	fl.StringVar(&region, "region", "", "region id")
	fl.StringVar(&node, "node", "", "node id, or a person's name")
	fl.StringSliceVar(&hosts, "host", nil, "IP address or DNS name under which the node is dialled; may be repeated (default localhost, 127.0.0.1, ::1)")
	return cmd
}
