package daemon

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// TenantConfig says how a tenant's migrations out of this node count against others'.
type TenantConfig struct {
	// Weight is the tenant's part of a link among the tenants of one class that have something to send, 0.001 to 1000.
	// Default 1, as for a tenant that is not listed.
	Weight float64 `yaml:"weight"`
	// MaxRate bounds what all links together send for it, page bytes a second as they travel, up to 1e15. Default 0: no bound.
	MaxRate int64 `yaml:"max_rate"`
}

// maxRate is more than any link has, bytes a second.
const maxRate = 1_000_000_000_000_000

// validateTenants checks tenants, and the rate of links.
func (c Config) validateTenants() (errs []error) {
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &ConfigError{field, value, allowed})
		}
	}
	const rates = "bytes a second, 1 to 1e15, or 0 for no bound"
	check(c.Link.MaxRate >= 0 && c.Link.MaxRate <= maxRate, "link.max_rate", c.Link.MaxRate, rates)
	check(len(c.Tenants) <= maxListed, "tenants", len(c.Tenants), "at most 1024 entries")
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		at, t := fmt.Sprintf("tenants[%.64q].", name), c.Tenants[name]
		check(len(name) <= 128 && printable(name), "tenants", fmt.Sprintf("%.64q", name), "names of at most 128 bytes of UTF-8 without control characters; \"\" is the default tenant")
		check(!math.IsNaN(t.Weight) && t.Weight >= 0.001 && t.Weight <= 1000, at+"weight", t.Weight, "0.001 to 1000, or 0 for 1")
		check(t.MaxRate >= 0 && t.MaxRate <= maxRate, at+"max_rate", t.MaxRate, rates)
	}
	return errs
}

func tenantDefaults(in map[string]TenantConfig) map[string]TenantConfig {
	out := make(map[string]TenantConfig, len(in))
	for name, t := range in {
		t.Weight = orDefault(t.Weight, 1)
		out[name] = t
	}
	return out
}

// weight is a tenant's.
func (c Config) weight(t kvstore.Tenant) float64 {
	if cfg, ok := c.Tenants[string(t)]; ok {
		return cfg.Weight
	}
	return 1
}

// share is how a puller's transfer counts: its tenant is that of the offer whose capability it brought.
func (d *Daemon) share(_ transfer.Peer, token []byte) transfer.Share {
	of, err := d.offers.find(token, "")
	if err != nil { // its reads will be refused
		return transfer.Share{}
	}
	t := of.session.Tenant
	return transfer.Share{Tenant: string(t), Weight: d.cfg.weight(t), MaxRate: d.tenantRate(t)}
}

// otherTenant labels what is done for tenants that the configuration does not list, of which there may be any number.
const otherTenant = "other"

// tenantLabel is a tenant's name in metrics.
func (c Config) tenantLabel(t string) string {
	if _, ok := c.Tenants[t]; ok {
		return t
	}
	return otherTenant
}

// transferClasses are the classes by their numbers in the API.
var transferClasses = map[pb.TransferClass]transfer.Class{
	pb.TransferClass_TRANSFER_CLASS_UNSPECIFIED: transfer.Interactive, pb.TransferClass_TRANSFER_CLASS_INTERACTIVE: transfer.Interactive,
	pb.TransferClass_TRANSFER_CLASS_BACKGROUND: transfer.Background, pb.TransferClass_TRANSFER_CLASS_REPLICATION: transfer.Replication,
}

func classFromProto(c pb.TransferClass) (transfer.Class, error) {
	out, ok := transferClasses[c]
	if !ok {
		return 0, invalid("class", c, "interactive, background, replication, or unspecified for interactive")
	}
	return out, nil
}

func classToProto(c transfer.Class) pb.TransferClass {
	return pb.TransferClass(c) + pb.TransferClass_TRANSFER_CLASS_INTERACTIVE
}
