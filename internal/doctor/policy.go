package doctor

import (
	"context"
	"os"

	"github.com/kvferry/kvferry/internal/policy"
)

// checkPolicy looks at the policy file as a daemon would that starts now.
func (d *doctor) checkPolicy(context.Context) Finding {
	if f, ok := d.settings(); !ok {
		return f
	}
	path := d.Config.Policy
	data, err := readBounded(path)
	if err != nil {
		return fail("correct policy in "+d.ConfigPath+", or put the file there", "%v", err)
	}
	p, err := policy.Parse(data)
	if err != nil {
		return fail("correct it; kvferry policy check "+path+" says when it is right", "%s: %v", path, err)
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o022 != 0 {
		return warn("chmod go-w "+path, "%s has mode %04o: others than its owner may change who gets what", path, st.Mode().Perm())
	}
	if len(p.Rules) == 0 {
		return warn("add rules, or take policy out of "+d.ConfigPath, "%s has no rules: nobody may pull anything", path)
	}
	return ok("%s: %d rules, %d callers, %d limits", path, len(p.Rules), len(p.Callers), len(p.Limits))
}
