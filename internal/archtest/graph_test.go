package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// node is a package as go list describes it.
type node struct {
	ImportPath   string
	Doc          string // the package comment's first sentence
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// graph is packages by import path.
type graph map[string]node

// ours returns the folder of a package of ours, relative to the root; the root itself is ".".
func ours(path string) (folder string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// matches says whether a folder is meant by a pattern of the table.
func matches(pattern, folder string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return folder == base || strings.HasPrefix(folder, base+"/")
	}
	return folder == pattern
}

func matchesAny(patterns []string, folder string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, folder) })
}

// under says whether an import path is a module or a package of it.
func under(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func underAny(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return under(path, p) })
}

// ruleFor returns the longest row that matches a folder.
func ruleFor(rules []rule, folder string) (rule, bool) {
	var best rule
	found := false
	for _, r := range rules {
		if matches(r.pkg, folder) && (!found || len(r.pkg) > len(best.pkg)) {
			best, found = r, true
		}
	}
	return best, found
}

// testHelper says whether a folder holds helpers for tests, which only tests may import.
func testHelper(folder string) bool {
	return strings.HasSuffix(folder, "test") && folder != "internal/archtest"
}

// reach returns every package in root's import graph with a shortest chain of imports that leads to it.
func (g graph) reach(root string) map[string][]string {
	chains := map[string][]string{}
	queue := [][]string{{root}}
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		for _, imp := range g[chain[len(chain)-1]].Imports {
			if _, seen := chains[imp]; seen || imp == root {
				continue
			}
			next := append(slices.Clone(chain), imp)
			chains[imp] = next
			queue = append(queue, next)
		}
	}
	return chains
}

// check returns every breach of the table, sorted: the package, the import by way of which chain, and the reason.
func (g graph) check(rules []rule) []string {
	var breaches []string
	for path, n := range g {
		folder, own := ours(path)
		if !own {
			continue
		}
		r, ok := ruleFor(rules, folder)
		if !ok {
			breaches = append(breaches, fmt.Sprintf("%s has no row in the import table: add one to internal/archtest/rules_test.go", folder))
			continue
		}
		if r.planned {
			breaches = append(breaches, fmt.Sprintf("%s exists: drop the mark 'planned' from its row in the import table", folder))
		}
		if r.onlyStd != nil {
			for _, imp := range n.Imports {
				if g[imp].Standard && !slices.Contains(r.onlyStd, imp) {
					breaches = append(breaches, fmt.Sprintf("%s imports %s: may import only %s; %s", folder, imp, strings.Join(r.onlyStd, " "), r.reason))
				}
			}
		}
		for imp, chain := range g.reach(path) {
			if why := g.forbidden(r, folder, imp); why != "" {
				breaches = append(breaches, fmt.Sprintf("%s imports %s (%s): %s; %s", folder, short(imp), chainText(chain), why, r.reason))
			}
		}
		breaches = append(breaches, g.checkDirect(folder, n)...)
	}
	slices.Sort(breaches)
	return breaches
}

// forbidden says why a row forbids an import, or nothing.
func (g graph) forbidden(r rule, folder, imp string) string {
	if target, own := ours(imp); own {
		if r.anything || matches(r.pkg, target) || matchesAny(r.own, target) {
			return ""
		}
		if len(r.own) == 0 {
			return "may import no package of ours"
		}
		return "of ours it may import only " + strings.Join(r.own, " ")
	}
	if imp == "testing" || strings.HasPrefix(imp, "testing/") {
		if testHelper(folder) {
			return ""
		}
		return "testing is never in production code"
	}
	if g[imp].Standard || imp == "C" { // "C" is cgo in the standard library's own graph
		return ""
	}
	if underAny(imp, r.deny) {
		return "may not"
	}
	if r.onlyOthers != nil && !underAny(imp, r.onlyOthers) {
		if len(r.onlyOthers) == 0 {
			return "may import the standard library only"
		}
		return "besides the standard library it may import only " + strings.Join(r.onlyOthers, " ")
	}
	return ""
}

// checkDirect holds the rules about a package's own import lines, those of its tests included.
func (g graph) checkDirect(folder string, n node) []string {
	var breaches []string
	for _, imp := range slices.Concat(n.Imports, n.TestImports, n.XTestImports) {
		target, own := ours(imp)
		if own && matches("cmd/...", target) && !matches("cmd/...", folder) {
			breaches = append(breaches, fmt.Sprintf("%s or its tests import %s: nothing imports a command", folder, target))
		}
	}
	for _, imp := range n.Imports {
		target, own := ours(imp)
		if own && matches("proto/...", target) && !matchesAny(protoImporters, folder) {
			breaches = append(breaches, fmt.Sprintf("%s imports %s: only %s and tests may; generated types never enter domain packages",
				folder, target, strings.Join(protoImporters, " ")))
		}
		if own && testHelper(target) && !testHelper(folder) {
			breaches = append(breaches, fmt.Sprintf("%s imports %s: only tests import helpers for tests", folder, target))
		}
	}
	return breaches
}

func short(path string) string { return strings.TrimPrefix(path, module+"/") }

func chainText(chain []string) string {
	names := make([]string, len(chain))
	for i, p := range chain {
		names[i] = short(p)
	}
	return strings.Join(names, " -> ")
}
