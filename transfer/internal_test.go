package transfer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer/wire"
)

// testCA is transfertest.CA's twin: that package imports this one.
type testCA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newTestCA(t testing.TB) *testCA {
	t.Helper()
	ca := &testCA{t: t, pool: x509.NewCertPool()}
	ca.cert, ca.key = ca.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	})
	ca.pool.AddCert(ca.cert)
	return ca
}

func (ca *testCA) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore = big.NewInt(1), time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	parent, by := ca.cert, ca.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return cert, key
}

func (ca *testCA) node(name string) *tls.Config {
	return ca.nodeUntil(name, year2100)
}

var year2100 = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

func (ca *testCA) nodeUntil(name string, end time.Time) *tls.Config {
	return ca.nodeFor(name, end, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

func (ca *testCA) nodeFor(name string, end time.Time, usages ...x509.ExtKeyUsage) *tls.Config {
	cert, key := ca.sign(&x509.Certificate{
		URIs: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/" + name}}, NotAfter: end, ExtKeyUsage: usages,
	})
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}, RootCAs: ca.pool}
}

func openTest(t *testing.T, n *wan.Network, at netip.AddrPort, c Config, edit func(*Config)) *Agent {
	t.Helper()
	var err error
	if c.Conn, err = n.Listen(at); err != nil {
		t.Fatal(err)
	}
	c.DialPacket = func(context.Context) (net.PacketConn, error) { return n.Listen(netip.AddrPortFrom(at.Addr(), 0)) }
	if edit != nil {
		edit(&c)
	}
	a, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestCodes holds the tables of codes to each other and to the list.
func TestCodes(t *testing.T) {
	none := map[Code]bool{CodeOK: true, CodeInternal: true, CodeStripeLost: true, CodeUnknownTransfer: true, CodeHandler: true, CodeHedged: true}
	names := make(map[string]Code)
	sentinels := make(map[error]Code)
	for c := CodeOK; c < codeEnd; c++ {
		name := c.String()
		if other, dup := names[name]; dup || name == fmt.Sprintf("code %d", c) {
			t.Errorf("code %d is called %q, and so is %d", c, name, other)
		}
		names[name] = c
		s := c.sentinel()
		if (s == nil) != none[c] {
			t.Errorf("%v stands for %v", c, s)
		}
		if s == nil {
			continue
		}
		if other, dup := sentinels[s]; dup {
			t.Errorf("%v and %v stand for %v", c, other, s)
		}
		sentinels[s] = c
		wrapped := fmt.Errorf("deep: %w", &ChunkError{Pair: 3, Page: 4, Err: fmt.Errorf("down: %w", s)})
		if got := codeOf(wrapped); got != c {
			t.Errorf("codeOf(%v) = %v, want %v", wrapped, got, c)
		}
		arrived := remoteFailure(5, failure(wrapped))
		ce, ok := errors.AsType[*ChunkError](arrived)
		if !ok || !errors.Is(arrived, s) || !ce.Remote || ce.Transfer != 5 || ce.Pair != 3 || ce.Page != 4 {
			t.Errorf("%v arrives as %v", wrapped, arrived)
		}
	}
	for _, s := range []error{
		ErrChecksumMismatch, ErrStaleGeneration, ErrLeaseExpired, ErrUnknownMemory, ErrOutOfRange, ErrNotPermitted,
		ErrCancelled, ErrStalled, ErrPeerGone, ErrPeerRestarted, ErrPeerIdentity, ErrVersion, ErrProtocol, ErrBusy, ErrClosed,
	} {
		if _, ok := sentinels[s]; !ok {
			t.Errorf("%v has no code", s)
		}
	}
	if c := codeOf(errors.New("else")); c != CodeInternal {
		t.Errorf("an unknown error has %v", c)
	}
	if c := codeOf(nil); c != CodeOK {
		t.Errorf("no error has %v", c)
	}
}

// testFlow is an outflow without a link to speak of.
func testFlow(l *Link, blocks, pages, pageBytes int) *outflow {
	descs, mems := make([]Desc, blocks), make([]*memory, blocks)
	m := newMemory(1, Bytes(make([]byte, 1), pageBytes))
	for i := range descs {
		descs[i], mems[i] = Desc{Memory: 1, Pages: uint32(pages)}, m
	}
	return newOutflow(l, flowKey{}, newPairs(descs, mems), new(beginning))
}

func testLink() *Link {
	l := &Link{agent: &Agent{cfg: Config{}.withDefaults()}}
	l.sched.init(l.agent.cfg.schedulerRules(), nil)
	return l
}

// TestScheduler holds that every page is handed out once, flows of a window in
// turn, and that the backlog is what has not left.
func TestScheduler(t *testing.T) {
	l := testLink()
	q := &l.sched
	q.rules.concurrency = 2
	q.addStripe(1, nil)
	q.addStripe(2, nil)
	a, b := testFlow(l, 3, 80, 64<<10), testFlow(l, 2, 80, 64<<10)
	q.start(a)
	q.start(b)
	if got, want := q.backlog(), int64(5*80*64<<10); got != want {
		t.Errorf("backlog %d, want %d", got, want)
	}
	seen := make(map[[3]int]int)
	var order []*outflow
	for q.backlog() > 0 {
		c, ok := q.take(1, Interactive)
		if !ok {
			t.Fatal("no chunk")
		}
		order = append(order, c.flow)
		if c.bytes() > 1<<20 {
			t.Errorf("chunk of %d bytes", c.bytes())
		}
		who := 0
		if c.flow == b {
			who = 1
		}
		for p := range c.pages {
			seen[[3]int{who, c.pair, c.first + p}]++
		}
		q.sent(c, 1, false)
	}
	for i := range 20 { // b, which has less to send, has 10 chunks
		if want := []*outflow{b, a}[i%2]; order[i] != want {
			t.Errorf("chunk %d out of turn", i)
		}
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("page %v handed out %d times", k, n)
		}
	}
	if len(seen) != 5*80 {
		t.Errorf("%d pages handed out, want 400", len(seen))
	}
}

// TestSchedulerLoss drops stripes and asks again, at random, against a count of
// what should still be owed.
func TestSchedulerLoss(t *testing.T) {
	rng := mrand.New(mrand.NewPCG(1, 2))
	for range 200 {
		l := testLink()
		q := &l.sched
		stripes := []uint32{1, 2, 3}
		for _, s := range stripes {
			q.addStripe(s, nil)
		}
		f := testFlow(l, 1+rng.IntN(3), 1+rng.IntN(60), 1+rng.IntN(400<<10))
		landed := make([]bool, f.pages())
		left := f.pages()
		q.start(f)
		next := uint32(4)
		flying := make(map[uint32][]chunk)
		for step := 0; left > 0; step++ {
			if step > 10000 {
				t.Fatalf("%d of %d pages never came", left, f.pages())
			}
			s := stripes[rng.IntN(len(stripes))]
			q.mu.Lock()
			c, _, ok := q.next(s, Interactive)
			q.mu.Unlock()
			if ok {
				flying[s] = append(flying[s], c)
			}
			switch rng.IntN(8) {
			case 0: // the stripe dies with what it carries; some of it may have been in a write
				i := rng.IntN(len(stripes))
				s := stripes[i]
				q.dropStripe(s)
				for _, c := range flying[s] {
					q.sent(c, s, rng.IntN(2) == 0)
				}
				delete(flying, s)
				stripes[i] = next
				q.addStripe(next, nil)
				next++
				f.handleAgain(againFor(landed, wire.ReasonStripeLost, s))
			case 1: // a page is bad, once its stream is over
				for i, c := range flying[s] {
					q.sent(c, s, false)
					bad := rng.IntN(c.pages)
					for p := range c.pages {
						if n := f.base[c.pair] + c.first + p; p != bad && !landed[n] {
							landed[n] = true
							left--
						}
					}
					flying[s] = append(flying[s][:i:i], flying[s][i+1:]...)
					only := make([]bool, len(landed))
					for n := range only {
						only[n] = landed[n] || n != f.base[c.pair]+c.first+bad
					}
					f.handleAgain(againFor(only, wire.ReasonBadPage, s))
					break
				}
			case 2:
				f.handleAgain(againFor(landed, wire.ReasonStalled, 0))
			default:
				for _, c := range flying[s] {
					q.sent(c, s, false)
					for p := range c.pages {
						if n := f.base[c.pair] + c.first + p; !landed[n] {
							landed[n] = true
							left--
						}
					}
				}
				delete(flying, s)
			}
		}
		q.stop(f)
		for s, cs := range flying {
			for _, c := range cs {
				q.sent(c, s, true)
			}
		}
		if n := q.backlog(); n != 0 {
			t.Fatalf("backlog %d after the end", n)
		}
	}
}

// againFor asks for the pages that have not landed.
func againFor(landed []bool, reason wire.Reason, stripe uint32) wire.Again {
	m := wire.Again{Reason: reason, Stripe: stripe, Pages: wire.NewBitmap(len(landed))}
	for n, ok := range landed {
		if !ok {
			m.Pages.Set(n)
		}
	}
	return m
}

// TestOverlap compares with a byte by byte count.
func TestOverlap(t *testing.T) {
	rng := mrand.New(mrand.NewPCG(3, 4))
	for range 2000 {
		var descs []Desc
		var mems []*memory
		used, twice := make(map[[2]uint64]bool), false
		for range 1 + rng.IntN(4) {
			d := Desc{Memory: MemoryID(1 + rng.IntN(2)), Offset: uint64(rng.IntN(60)), Pages: uint32(1 + rng.IntN(4))}
			descs, mems = append(descs, d), append(mems, newMemory(d.Memory, Memory{PageBytes: 3}))
			for i := range uint64(d.Pages) * 3 {
				k := [2]uint64{uint64(d.Memory), d.Offset + i}
				twice = twice || used[k]
				used[k] = true
			}
		}
		if err := overlap("local", newPairs(descs, mems)); (err != nil) != twice {
			t.Fatalf("%+v: %v, want overlap %v", descs, err, twice)
		}
	}
}

// TestInRange compares with arbitrary precision.
func TestInRange(t *testing.T) {
	values := []uint64{0, 1, 2, 100, 1<<22 - 1, 1 << 22, 1<<46 - 1, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1}
	for _, length := range values {
		if length == 0 || length >= 1<<63 {
			continue
		}
		for _, offset := range values {
			for _, pages := range []uint32{0, 1, 2, 1 << 24, 1<<24 + 1, 1<<32 - 1} {
				for _, pageBytes := range []int{1, 3, 4 << 20} {
					end := new(big.Int).Mul(big.NewInt(int64(pages)), big.NewInt(int64(pageBytes)))
					end.Add(end, new(big.Int).SetUint64(offset))
					want := pages > 0 && pages <= wire.MaxPages && end.Cmp(new(big.Int).SetUint64(length)) <= 0
					err := Desc{Offset: offset, Pages: pages}.inRange(int64(length), pageBytes)
					if (err == nil) != want || err != nil && !errors.Is(err, ErrOutOfRange) {
						t.Errorf("length %d offset %d pages %d of %d: %v", length, offset, pages, pageBytes, err)
					}
				}
			}
		}
	}
}

func TestMetadataRoundTrip(t *testing.T) {
	want := Metadata{Peer: Peer{ID: "a", Incarnation: "b"}, Memories: []MemoryShape{
		{ID: 1, PageBytes: 1, Length: 1, Readable: true}, {ID: 9, PageBytes: 4 << 20, Length: 1<<63 - 1, Readable: true, Writable: true},
	}}
	b, err := want.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var got Metadata
	if err := got.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	b[1] = 7
	if err := got.UnmarshalBinary(b); !errors.Is(err, ErrVersion) {
		t.Errorf("other version: %v", err)
	}
}

// TestMetrics holds that an agent's metrics come and go with it, and that two
// agents on one Registerer are told how to live together.
func TestMetrics(t *testing.T) {
	ca, r := newTestCA(t), prometheus.NewRegistry()
	c := Config{Name: "spiffe://test/a", TLS: ca.node("a"), Registerer: r}
	a, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(a.metrics.links); n != 1 {
		t.Errorf("%d gauges", n)
	}
	if _, err := Open(c); err == nil {
		t.Error("a second agent registered the same metrics")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a, err = Open(c); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := r.Gather(); err != nil || len(all) != 0 {
		t.Errorf("%d metrics left, %v", len(all), err)
	}
}

// TestPlainSum compares with the checksum of the bytes laid end to end.
func TestPlainSum(t *testing.T) {
	for _, k := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {1 << 17, 1<<24 - 1}} {
		b := binary.BigEndian.AppendUint64(nil, uint64(k[0]))
		b = append(binary.BigEndian.AppendUint64(b, uint64(k[1])), "some page"...)
		if got, want := plainSum(k[0], k[1], []byte("some page")), crc32.Checksum(b, castagnoli); got != want {
			t.Errorf("%v: %08x, want %08x", k, got, want)
		}
	}
}

// TestLandAllocs holds the receiving side to no allocation a page.
func TestLandAllocs(t *testing.T) {
	l := testLink()
	var err error
	if l.agent.metrics, err = newMetrics(nil); err != nil {
		t.Fatal(err)
	}
	const pages = 4096
	m := newMemory(1, Bytes(make([]byte, pages*64), 64))
	in := newIntake(l, flowKey{own: true, id: 1}, newPairs([]Desc{{Memory: 1, Pages: pages}}, []*memory{m}))
	in.init(func(error, bool) {})
	in.onLanded = func(int, int, int) {}
	page := make([]byte, 64)
	n := 0
	if avg := testing.AllocsPerRun(1000, func() {
		if bad, _ := in.land(0, n, arrived{b: page, sum: plainSum(0, n, page), wire: len(page)}); bad {
			t.Fatal("page refused")
		}
		n++
	}); avg != 0 {
		t.Errorf("%v allocations a page", avg)
	}
}
