package daemon

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/nvml"
)

// deployDir is what this package's tests hold: files that operators copy.
const deployDir = "../../deploy"

func deployFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deployDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The example is a configuration that kvferryd takes, and shows every section.
func TestDeployConfig(t *testing.T) {
	data := deployFile(t, "kvferryd.yaml")
	c, err := ParseConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WithDefaults().Validate(), c.validateTLS()); err != nil {
		t.Error(err)
	}
	var sections map[string]any
	if err := yaml.Unmarshal(data, &sections); err != nil {
		t.Fatal(err)
	}
	all, err := Config{}.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range regexp.MustCompile(`(?m)^[a-z_]+`).FindAllString(string(all), -1) {
		if _, ok := sections[line]; !ok {
			t.Errorf("the example does not show %q", line)
		}
	}
}

// panel is what a dashboard asks Prometheus.
type panel struct {
	Type, Title, Description string
	Panels                   []panel
	Targets                  []struct{ Expr, LegendFormat string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal(deployFile(t, "grafana/kvferry.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// queries are the dashboard's, by panel, with Grafana's variables filled in.
func (d dashboard) queries() map[string][]string {
	fill := strings.NewReplacer("$__rate_interval", "10s", "$node", ".*")
	out := map[string][]string{}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			out[p.Title] = append(out[p.Title], fill.Replace(q.Expr))
		}
	}
	return out
}

// Every panel says what it shows and in what unit, and asks about the chosen nodes only.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("dashboard %q %q, schema %d: want names, and a schema of Grafana 9 or later", d.UID, d.Title, d.SchemaVersion)
	}
	var rows, variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	seen := map[string]bool{}
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || seen[p.Title] {
			t.Errorf("panel %q has no description, unit or query, or its title twice", p.Title)
		}
		seen[p.Title] = true
		for _, q := range p.Targets {
			if q.LegendFormat == "" || strings.Count(q.Expr, `{instance=~"$node"`) != strings.Count(q.Expr, "{") {
				t.Errorf("panel %q: %q has no legend, or does not ask about the chosen nodes", p.Title, q.Expr)
			}
		}
	}
	if want := []string{"Migrations", "Links", "Arena", "Engines & GPU"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
	if want := []string{"datasource", "node"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q, want %q", variables, want)
	}
}

// ruleFile is a file of Prometheus rules.
type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func readRules(t *testing.T) (all []rule) {
	t.Helper()
	var f ruleFile
	if err := yaml.UnmarshalWithOptions(deployFile(t, "prometheus/kvferry.rules.yaml"), &f, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// Every alert says what is wrong and has a page that says what to do.
func TestAlertsHaveRunbooks(t *testing.T) {
	readme := string(deployFile(t, "README.md"))
	tests := string(deployFile(t, "prometheus/kvferry.rules_test.yaml"))
	for _, r := range readRules(t) {
		if r.Record != "" {
			if !strings.Contains(tests, r.Record+"{") {
				t.Errorf("rule %s has no unit test", r.Record)
			}
			continue
		}
		a := r.Annotations
		if a["summary"] == "" || a["description"] == "" || a["runbook"] != "deploy/README.md#"+strings.ToLower(r.Alert) || !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("alert %s: annotations %v, labels %v", r.Alert, a, r.Labels)
		}
		if !strings.Contains(readme, "\n### "+r.Alert+"\n") {
			t.Errorf("alert %s has no heading in deploy/README.md", r.Alert)
		}
		if !strings.Contains(tests, r.Alert) {
			t.Errorf("alert %s has no unit test", r.Alert)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(readme, -1) {
		if !slices.ContainsFunc(readRules(t), func(r rule) bool { return r.Alert == m[1] }) {
			t.Errorf("deploy/README.md explains %s, which is no alert", m[1])
		}
	}
}

// allMetrics are the names of everything that a daemon may export, those without a sample too.
func allMetrics(t *testing.T) []string {
	t.Helper()
	cfg := Config{Node: NodeConfig{ID: "a", Region: "r"}, Engines: []EngineConfig{{ID: "e"}}}.WithDefaults()
	d := &Daemon{
		cfg: cfg, self: kvstore.NodeID("a"), registry: prometheus.NewRegistry(), offers: newOffers(1, Config{}.weight), migrations: newMigrations(cfg.Migration),
		load: &load{gpus: &fakeGPUs{snap: nvml.Snapshot{}}}, links: newLinks(cfg, nil, nil),
	}
	newMetrics(d.registry, d)
	ch := make(chan *prometheus.Desc, 1000)
	d.registry.Describe(ch)
	close(ch)
	var names []string
	for desc := range ch {
		names = append(names, regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(desc.String())[1])
	}
	return names
}

// transferMetrics are registered by the transfer package.
var transferMetrics = []string{"kvferry_transfer_checksum_mismatches_total"}

// Dashboards, rules and documentation name metrics that exist, and the documentation every area.
func TestDeployNamesMetrics(t *testing.T) {
	names := append(allMetrics(t), transferMetrics...)
	if len(names) < 60 {
		t.Fatalf("only %d metrics: %v", len(names), names)
	}
	for _, r := range readRules(t) {
		names = append(names, r.Record)
	}
	known := func(name string) bool {
		for _, suffix := range []string{"", "_sum", "_count", "_bucket"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && slices.Contains(names, base) {
				return true
			}
		}
		return false
	}
	word := regexp.MustCompile(`(?:\w+:)?kvferry_\w+(?::\w+)?`)
	var texts []string
	for _, queries := range readDashboard(t).queries() {
		texts = append(texts, queries...)
	}
	for _, r := range readRules(t) {
		texts = append(texts, r.Expr)
	}
	readme := string(deployFile(t, "README.md"))
	for _, text := range append(texts, strings.ReplaceAll(readme, "{predicted,actual}", "actual")) {
		for _, name := range word.FindAllString(text, -1) {
			if name != "kvferry_" && !known(name) {
				t.Errorf("%s is named and does not exist: %.80q", name, text)
			}
		}
	}
	for _, name := range allMetrics(t) {
		area := strings.Split(name, "_")[1]
		if area != "build" && area != "daemon" && area != "peer" && !strings.Contains(readme, "| `"+area+"` |") {
			t.Errorf("deploy/README.md does not describe the area of %s", name)
		}
	}
}

// tool runs a program of the system, or skips the test where it is missing.
func tool(t *testing.T, name, pkg string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is missing (apt-get install %s)", name, pkg)
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func TestRules(t *testing.T) {
	tool(t, "promtool", "prometheus", "check", "rules", filepath.Join(deployDir, "prometheus/kvferry.rules.yaml"))
	tests, err := filepath.Glob(filepath.Join(deployDir, "prometheus/*_test.yaml"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("no tests of rules: %v", err)
	}
	tool(t, "promtool", "prometheus", append([]string{"test", "rules"}, tests...)...)
}

var orPattern = regexp.MustCompile(`\s+or\s+(?:on \([^)]*\)\s+)?`)

// branches are what an expression is the union of, and each with what joins it to the one before.
func branches(expr string) (parts, joints []string) {
	at := 0
	for _, m := range orPattern.FindAllStringIndex(expr, -1) {
		parts, joints = append(parts, expr[at:m[0]]), append(joints, expr[m[0]:m[1]])
		at = m[1]
	}
	return append(parts, expr[at:]), joints
}

// without is the expression without its i-th branch.
func without(expr string, i int) string {
	parts, joints := branches(expr)
	j := max(i-1, 0)
	parts, joints = slices.Delete(parts, i, i+1), slices.Delete(joints, j, j+1)
	out := parts[0]
	for k, joint := range joints {
		out += joint + parts[k+1]
	}
	return out
}

// The rules' unit tests hold every branch of every alert: without any one of them they fail.
func TestRuleBranches(t *testing.T) {
	if testing.Short() {
		t.Skip("a dozen runs of promtool")
	}
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing (apt-get install prometheus)")
	}
	var file map[string]any // the one of its tests that is about branches: all of them take a second and more
	if err := yaml.Unmarshal(deployFile(t, "prometheus/kvferry.rules_test.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	file["tests"] = slices.DeleteFunc(file["tests"].([]any), func(group any) bool {
		return !strings.HasPrefix(group.(map[string]any)["name"].(string), "every cause of an alert")
	})
	tests, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, edit func(alert string, i int) bool) (removed int, output string, err error) {
		var f map[string]any
		if err := yaml.Unmarshal(deployFile(t, "prometheus/kvferry.rules.yaml"), &f); err != nil {
			t.Fatal(err)
		}
		for _, g := range f["groups"].([]any) {
			for _, r := range g.(map[string]any)["rules"].([]any) {
				r := r.(map[string]any)
				alert, ok := r["alert"].(string)
				expr := r["expr"].(string)
				parts, _ := branches(expr)
				for i := range parts {
					if ok && len(parts) > 1 && edit(alert, i) {
						r["expr"] = without(expr, i)
						removed++
					}
				}
			}
		}
		rules, err := yaml.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for name, data := range map[string][]byte{"kvferry.rules.yaml": rules, "kvferry.rules_test.yaml": tests} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.CommandContext(t.Context(), path, "test", "rules", filepath.Join(dir, "kvferry.rules_test.yaml")).CombinedOutput()
		return removed, string(out), err
	}
	type branch struct {
		alert string
		i     int
	}
	var all []branch
	if _, out, err := run(t, func(alert string, i int) bool { all = append(all, branch{alert, i}); return false }); err != nil {
		t.Fatalf("as they are: %v\n%s", err, out)
	}
	if len(all) < 8 {
		t.Fatalf("only %d branches: %v", len(all), all)
	}
	for _, b := range all {
		t.Run(b.alert+"/"+strconv.Itoa(b.i), func(t *testing.T) {
			t.Parallel()
			removed, out, err := run(t, func(alert string, i int) bool { return branch{alert, i} == b })
			if _, failed := errors.AsType[*exec.ExitError](err); removed != 1 || !failed || !strings.Contains(out, " got:") {
				t.Errorf("without branch %d of %s (%d removed) the unit tests end with %v:\n%s", b.i, b.alert, removed, err, out)
			}
		})
	}
}

// The unit is one that systemd takes.
func TestUnit(t *testing.T) {
	unit := strings.ReplaceAll(string(deployFile(t, "systemd/kvferryd.service")), "/usr/local/bin/kvferryd", "/bin/true")
	path := filepath.Join(t.TempDir(), "kvferryd.service")
	if err := os.WriteFile(path, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "systemd-analyze", "systemd", "verify", "--man=no", path)
}

// Every metric of links is on the dashboard: how much repair does and costs, stripes, and what is learnt of a path are what an
// operator judges a link by. The age and spread of an estimate stand in `kvferry links`.
func TestDashboardShowsLinks(t *testing.T) {
	var asked strings.Builder
	for _, queries := range readDashboard(t).queries() {
		asked.WriteString(strings.Join(queries, "\n"))
	}
	for _, name := range allMetrics(t) {
		if !strings.HasPrefix(name, "kvferry_link_") || strings.Contains(name, "_age_") || strings.Contains(name, "_spread_") || strings.HasSuffix(name, "_received_packets_total") {
			continue
		}
		if !strings.Contains(asked.String(), name+"{") {
			t.Errorf("no panel asks for %s", name)
		}
	}
}
