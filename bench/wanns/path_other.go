//go:build !linux

package wanns

import (
	"net/netip"

	"github.com/kvferry/kvferry/bench/wan"
)

// Path does not exist on this system.
type Path struct{}

// Open returns [ErrUnsupported].
func Open(Config) (*Path, error) { return nil, ErrUnsupported }

// Addr is not reached.
func (*Path) Addr(Side) netip.Addr { return netip.Addr{} }

// Do returns [ErrUnsupported].
func (*Path) Do(Side, func() error) error { return ErrUnsupported }

// Stats is not reached.
func (*Path) Stats() Stats { return Stats{} }

// SetModel returns [ErrUnsupported].
func (*Path) SetModel(wan.Model) error { return ErrUnsupported }

// Cut is not reached.
func (*Path) Cut() {}

// Heal is not reached.
func (*Path) Heal() {}

// Close is not reached.
func (*Path) Close() error { return nil }
