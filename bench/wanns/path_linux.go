package wanns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/kvferry/kvferry/bench/wan"
)

// Path is two namespaces and the pair of links between them.
type Path struct {
	cfg     Config
	ends    [2]*end
	links   [2]*wan.Link // by the side that sends
	readers sync.WaitGroup
	close   func() error // once
}

// end is one namespace with its device.
type end struct {
	ns     *namespace
	device *os.File
	addr   netip.Addr
}

// Receive implements wan.Receiver: the packet comes out of the device.
func (e *end) Receive(ip []byte) bool {
	_, err := e.device.Write(ip)
	return err == nil
}

// Open makes the namespaces, under /run/netns where ip(8) finds them, and joins them. Close is owed. It returns
// Config.Validate's errors, [ErrNotPermitted], [ErrNoTUN], [ErrExists], all wrapped, or the system's; on error nothing is
// left behind.
func Open(cfg Config) (_ *Path, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	p := &Path{cfg: cfg}
	p.close = sync.OnceValue(p.shut)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if _, err := os.Stat(tunDevice); err != nil {
		return nil, fmt.Errorf("wanns: %w", ErrNoTUN)
	}
	a, b := cfg.addrs()
	for i, e := range []struct {
		name string
		addr netip.Addr
	}{{cfg.A, a}, {cfg.B, b}} {
		ns, err := newNamespace(e.name)
		if err != nil {
			return nil, fmt.Errorf("wanns: namespace %s: %w", e.name, err)
		}
		p.ends[i] = &end{ns: ns, addr: e.addr}
		err = ns.do(func() (err error) {
			p.ends[i].device, err = openDevice(e.addr, cfg.Net.Bits(), cfg.mtu())
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("wanns: namespace %s: %w", e.name, err)
		}
	}
	for i, name := range []string{"a>b", "b>a"} {
		p.links[i] = wan.OpenLink(cfg.Model, name)
	}
	for i := range p.ends {
		p.readers.Go(func() { p.read(p.ends[i].device, p.links[i], p.ends[1-i]) })
	}
	return p, nil
}

// read carries what is sent into one device to its link, until the device is closed.
func (p *Path) read(device *os.File, link *wan.Link, to *end) {
	buf := make([]byte, maxMTU)
	for {
		n, err := device.Read(buf)
		if err != nil {
			return
		}
		link.SendIP(buf[:n], to)
	}
}

// Addr is a side's address.
func (p *Path) Addr(s Side) netip.Addr { return p.ends[s].addr }

// Do calls fn on a thread that is in the side's namespace: sockets that fn opens itself are in it, those of goroutines that
// fn starts are not. It returns fn's error, or the system's. Not after Close.
func (p *Path) Do(s Side, fn func() error) error { return p.ends[s].ns.do(fn) }

// Stats returns the counters.
func (p *Path) Stats() Stats {
	return Stats{
		AToB: p.links[A].Stats(), BToA: p.links[B].Stats(),
		DeviceDropsA: p.ends[A].ns.drops(), DeviceDropsB: p.ends[B].ns.drops(),
	}
}

// SetModel changes both directions under way; the devices keep their MTU. It returns Model.Validate's error and then
// changes nothing.
func (p *Path) SetModel(m wan.Model) error {
	return errors.Join(p.links[A].SetModel(m), p.links[B].SetModel(m))
}

// Cut cuts both directions: what is in flight is lost, and so is what is sent until Heal.
func (p *Path) Cut() { p.links[A].Cut(); p.links[B].Cut() }

// Heal undoes Cut.
func (p *Path) Heal() { p.links[A].Heal(); p.links[B].Heal() }

// Close removes devices and namespaces, and waits for the goroutines. Programs that still run in a namespace keep it, without
// a name and a device. It is idempotent.
func (p *Path) Close() error { return p.close() }

func (p *Path) shut() error {
	var errs []error
	for _, e := range p.ends {
		if e != nil && e.device != nil {
			errs = append(errs, e.device.Close())
		}
	}
	p.readers.Wait()
	for _, l := range p.links {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	for _, e := range p.ends {
		if e != nil {
			errs = append(errs, e.ns.remove())
		}
	}
	return errors.Join(errs...)
}
