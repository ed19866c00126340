package transfer

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/udp"
	"github.com/kvferry/kvferry/transfer/wire"
)

// ALPN is the application protocol of every connection.
const ALPN = "kvferry/1"

// A PeerID is a node's name, as its certificate gives it.
type PeerID string

// A Peer is one process of a node.
type Peer struct {
	ID          PeerID
	Incarnation string // changes with every start of the process
	Region      string // what Config.Region made of its certificate; empty without
}

// Config configures an Agent. Zero means the documented default, negative means
// off where a field says so. Open copies it.
type Config struct {
	// Name is this node's name, 1 to 255 bytes. It must be what Identify makes
	// of the certificate in TLS.
	Name PeerID
	// Incarnation names this process; it must differ after every restart.
	// Default: a random text.
	Incarnation string

	// Conn is the socket that peers dial. The agent owns it from a successful
	// Open on. A *net.UDPConn is read through package transfer/udp from the call
	// on, so after a failed one it is good only to be closed; any other, a *udp.Conn
	// among them, is used as it is. Nil: the agent only dials.
	Conn net.PacketConn
	// DialPacket opens the socket of one dialled stripe; the agent closes it. A
	// *net.UDPConn is treated as in Conn. Default: udp.Listen on a port of the
	// system's choice.
	DialPacket func(context.Context) (net.PacketConn, error)

	// TLS holds the node's certificate and the CAs of its peers: RootCAs, and
	// ClientCAs where they differ. The agent works on a clone: TLS 1.3, mutual,
	// ALPN "kvferry/1", chains verified against the CAs, host names ignored.
	TLS *tls.Config
	// CurrentTLS returns what takes TLS's place in the handshakes that begin from here on, as a certificate that was issued
	// anew does; connections that are up go on. It must not block. Nil: TLS.
	CurrentTLS func() *tls.Config
	// Identify names the node that a certificate was issued to. Default: the
	// first URI name, else the common name.
	Identify func(*x509.Certificate) (PeerID, error)
	// Region names where a certificate says that its node is; all connections of a link agree in it. An error refuses the
	// connection as ErrPeerIdentity. Nil: nothing is known.
	Region func(*x509.Certificate) (string, error)
	// Expect refuses a node that was dialled and whose certificate names it, but is not as it should be, another region's
	// for one; the error wraps into ErrPeerIdentity. Nil: Identify is enough.
	Expect func(want PeerID, cert *x509.Certificate) error

	// Stripes is how many connections a dialled link has, 1 to 64. Default 0: as
	// many as the path needs, 4 at first or what Recall says. One connection is
	// capped at 10,000 packets in flight: at 1,452 B x 70 ms that is 1.66 Gbit/s.
	Stripes int
	// Recall returns what LinkStats.Estimates said of an earlier link to the peer,
	// with Age grown by the time since; a link that is dialled takes it in as
	// Persisted. It must not block. Nil, or a zero Estimates: nothing is known.
	Recall func(PeerID) Estimates
	// ChunkBytes is the most that one stream carries, 4 KiB to 4 MiB; a page
	// larger than it travels alone. Default 1 MiB.
	ChunkBytes int
	// StreamsPerStripe is how many chunks of each class are written to one
	// connection at a time, 1 to 64; each holds a buffer of a chunk. Default 2.
	StreamsPerStripe int

	// ConnectTimeout bounds Connect, and the time in which a broken link must be
	// restored. Default 10 s.
	ConnectTimeout time.Duration
	// HandshakeTimeout bounds the set-up of one connection. Default 5 s.
	HandshakeTimeout time.Duration
	// ProgressTimeout is the default of TransferOptions.ProgressTimeout.
	// Default 20 s; negative: off.
	ProgressTimeout time.Duration
	// ServeTimeout ends a peer's read that is being sent from here with ErrStalled when no connection of the link has
	// accepted a byte for so long while pages were ready, as of a peer that does not read; one that waits its turn, is held for
	// a higher class, or comes slowly goes on. To be above IdleTimeout, so that a path that is cut is not taken for that.
	// Default twice IdleTimeout, 60 s; negative: off.
	ServeTimeout time.Duration
	// KeepAlive is the period of keep-alives. Default 10 s; negative: off.
	KeepAlive time.Duration
	// IdleTimeout is the silence after which a connection counts as dead.
	// Default 30 s.
	IdleTimeout time.Duration

	// MaxConnections bounds the connections that peers have dialled here, all together, 1 to 65,536; one peer has at
	// most 256. Default 4096.
	MaxConnections int
	// StreamWindow is the receive window of a stream, in bytes, at least the
	// peer's chunk with its header. Default 4 MiB and 64 KiB.
	StreamWindow int64
	// ConnWindow and MaxConnWindow are the receive window of a connection, in
	// bytes, at first and at most. Defaults 32 and 64 MiB; at 70 ms one
	// connection can fill 3.8 Gbit/s with the first. One that a peer dialled, over which
	// its requests come, begins with 1 MiB at most; all of those together grow by 1 GiB.
	ConnWindow, MaxConnWindow int64

	// Codec says how pages that leave here are coded, where the peer can decode it:
	// CodecAuto, by what the path carries, what the processors have left and what
	// the pages lose by it; CodecOff, never; or the name of one of package codec, for
	// all pages that it makes shorter. Pages stay bit for bit what they are. Default
	// CodecAuto.
	Codec string
	// Cores is how many processors coding and sending share here, 1 to 65,535, for the choice of a codec and for the peer's. Default
	// runtime.GOMAXPROCS(0).
	Cores int
	// Codecs codes and decodes pages. Nil: package codec. It is for models, in which a processor's time is not that of the machine.
	Codecs Codecs
	// Repair adds parity to what is sent, as much as the path's losses ask for, and
	// rebuilds what was lost before QUIC misses it; both ends must allow it. See
	// repair.Config: the zero value adapts, negative Parity is off.
	Repair repair.Config

	// Handler answers the peer's calls; it runs on a goroutine of its own a
	// call, at most 256 a link. ctx ends with the call and with the link. See
	// RemoteError for its errors. Nil: calls are refused.
	Handler func(ctx context.Context, from Peer, payload []byte) ([]byte, error)
	// OnNotify takes the notification of a transfer that a peer completed, once.
	// It must not block.
	OnNotify func(from Peer, payload []byte)
	// OnServed accounts for what peers read from here, a chunk at a time; the
	// report that is Done comes once, last. It must not block and may be called
	// concurrently; the token may not be changed.
	OnServed func(from Peer, s Served)

	// Share says how a transfer that is sent from here counts against others: of a
	// peer's read by the token that it brought, of a write that was started here by
	// its own. Called once a transfer; it must not block. Nil: one tenant.
	Share func(peer Peer, token []byte) Share
	// Permit is asked once of each read that a peer begins, before anything of it is looked at but its bounds; its error
	// refuses the read. It must not block, and may not change the token. Nil: Sources decide.
	Permit func(from Peer, token []byte) error
	// Concurrency is how many transfers of one tenant and class are served at a time
	// on a link, chunk by chunk in turn, 1 to 1024; the rest wait in order: earliest
	// deadline first, then least left to send. Default 1: with more, each of them
	// waits for all of them.
	Concurrency int
	// AgeAfter is how long a transfer waits at most behind later ones: the oldest of
	// those queued for longer gets a quarter of the bytes of its class and tenant.
	// Default 10 s; negative: off.
	AgeAfter time.Duration
	// MaxRate bounds the page bytes a second that are sent on a link, as they travel
	// (coded, where they are), repeats and duplicates included, headers and parity
	// not. Default 0: unbounded.
	MaxRate int64

	// Logger takes events. Default: none.
	Logger *slog.Logger
	// Registerer takes the metrics. Default: none.
	Registerer prometheus.Registerer

	// version is the protocol version to speak, for tests. Default wire.Version.
	version uint16
}

// Validate joins a *FieldError for each field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, allowed, fix string) {
		errs = append(errs, &FieldError{Field: "Config." + field, Value: value, Allowed: allowed, Fix: fix})
	}
	if n := len(c.Name); n == 0 || n > wire.MaxName || !utf8.ValidString(string(c.Name)) {
		bad("Name", fmt.Sprintf("%q", clip(string(c.Name), 64)), "1 to 255 bytes of UTF-8", "set it to the name in the node's certificate")
	}
	if len(c.Incarnation) > wire.MaxName || !utf8.ValidString(c.Incarnation) {
		bad("Incarnation", fmt.Sprintf("%d bytes", len(c.Incarnation)), "at most 255 bytes of UTF-8", "leave it empty for a random one")
	}
	switch {
	case c.TLS == nil:
		bad("TLS", "nil", "a certificate and RootCAs", "load the node's certificate and the CA")
	case c.TLS.RootCAs == nil:
		bad("TLS.RootCAs", "nil", "the CAs of the peers", "load the CA that issues node certificates")
	case len(c.TLS.Certificates) == 0 && (c.TLS.GetCertificate == nil || c.TLS.GetClientCertificate == nil):
		bad("TLS.Certificates", "empty", "the node's certificate", "load it, or set GetCertificate and GetClientCertificate")
	}
	inRange := func(field string, v, lo, hi int64) {
		if v != 0 && (v < lo || v > hi) {
			bad(field, v, fmt.Sprintf("%d to %d, or 0 for the default", lo, hi), "choose a value in that range")
		}
	}
	inRange("Stripes", int64(c.Stripes), 1, 64)
	inRange("ChunkBytes", int64(c.ChunkBytes), 4<<10, wire.MaxChunkBytes)
	inRange("StreamsPerStripe", int64(c.StreamsPerStripe), 1, 64)
	inRange("Concurrency", int64(c.Concurrency), 1, maxServed)
	if c.MaxRate < 0 || c.MaxRate > 1<<50 {
		bad("MaxRate", c.MaxRate, "1 to 2^50 bytes a second, or 0 for no bound", "choose a value in that range")
	}
	inRange("MaxConnections", int64(c.MaxConnections), 1, 1<<16)
	inRange("Cores", int64(c.Cores), 1, maxCores)
	inRange("StreamWindow", c.StreamWindow, 64<<10, 1<<30)
	inRange("ConnWindow", c.ConnWindow, 64<<10, 1<<34)
	inRange("MaxConnWindow", c.MaxConnWindow, 64<<10, 1<<34)
	if err := CheckCodec(c.Codec); err != nil {
		errs = append(errs, &FieldError{Field: "Config.Codec", Value: c.Codec, Allowed: "auto, off, or a codec's name", Fix: "leave it empty to have the link choose", Err: err})
	}
	if err := c.Repair.Validate(); err != nil {
		errs = append(errs, &FieldError{Field: "Config.Repair", Value: err, Allowed: "what repair.Config says", Fix: "leave it zero to have it adapt", Err: err})
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"ConnectTimeout", c.ConnectTimeout}, {"HandshakeTimeout", c.HandshakeTimeout}, {"IdleTimeout", c.IdleTimeout}} {
		if d.value < 0 {
			bad(d.field, d.value, "0 for the default, or more", "a link without this bound would wait for ever")
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.ConnectTimeout, 10*time.Second)
	def(&c.HandshakeTimeout, 5*time.Second)
	def(&c.ProgressTimeout, 20*time.Second)
	def(&c.KeepAlive, 10*time.Second)
	def(&c.IdleTimeout, 30*time.Second)
	def(&c.ServeTimeout, 2*c.IdleTimeout)
	if c.Incarnation == "" {
		c.Incarnation = rand.Text()
	}
	if c.DialPacket == nil {
		c.DialPacket = func(context.Context) (net.PacketConn, error) { return udp.Listen(":0", udp.Config{}) }
	}
	if c.Identify == nil {
		c.Identify = identify
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.ChunkBytes = orDefault(c.ChunkBytes, 1<<20)
	c.StreamsPerStripe = orDefault(c.StreamsPerStripe, 2)
	c.Concurrency = orDefault(c.Concurrency, 1)
	c.MaxConnections = orDefault(c.MaxConnections, 4096)
	def(&c.AgeAfter, 10*time.Second)
	c.StreamWindow = orDefault(c.StreamWindow, wire.MaxChunkBytes+64<<10)
	c.ConnWindow = orDefault(c.ConnWindow, 32<<20)
	c.MaxConnWindow = max(orDefault(c.MaxConnWindow, 64<<20), c.ConnWindow)
	c.Codec = orDefault(c.Codec, CodecAuto)
	c.Cores = orDefault(c.Cores, min(runtime.GOMAXPROCS(0), maxCores))
	if c.Codecs == nil {
		c.Codecs = packageCodecs{}
	}
	c.Repair = c.Repair.WithDefaults()
	c.version = orDefault(c.version, wire.Version)
	return c
}

func (c Config) schedulerRules() schedulerRules {
	r := schedulerRules{concurrency: c.Concurrency, ageAfter: c.AgeAfter, maxRate: c.MaxRate, noticeEvery: noticeEvery}
	if c.ProgressTimeout > 0 {
		r.noticeEvery = max(min(noticeEvery, c.ProgressTimeout/4), time.Millisecond)
	}
	return r
}

// wrapUDP puts a plain UDP socket under transfer/udp; on an error conn is the
// caller's, as it was.
func wrapUDP(conn net.PacketConn) (net.PacketConn, error) {
	if u, ok := conn.(*net.UDPConn); ok {
		return udp.Wrap(u, udp.Config{})
	}
	return conn, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func identify(cert *x509.Certificate) (PeerID, error) {
	if len(cert.URIs) > 0 {
		return PeerID(cert.URIs[0].String()), nil
	}
	if cert.Subject.CommonName != "" {
		return PeerID(cert.Subject.CommonName), nil
	}
	return "", errors.New("the certificate has neither a URI name nor a common name")
}

// quicConfig keeps InitialPacketSize at its default: above 1,280 quic-go's pacer
// and sender disagree about the packet size and its run loop can spin.
func (c Config) quicConfig() *quic.Config {
	return &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		HandshakeIdleTimeout:           c.HandshakeTimeout,
		MaxIdleTimeout:                 c.IdleTimeout,
		KeepAlivePeriod:                max(c.KeepAlive, 0),
		InitialStreamReceiveWindow:     uint64(c.StreamWindow),
		MaxStreamReceiveWindow:         uint64(2 * c.StreamWindow),
		InitialConnectionReceiveWindow: uint64(c.ConnWindow),
		MaxConnectionReceiveWindow:     uint64(c.MaxConnWindow),
		MaxIncomingStreams:             1, // the control stream
		MaxIncomingUniStreams:          1024,
	}
}

// tls is what holds for a handshake that begins.
func (c Config) tls() *tls.Config {
	if c.CurrentTLS != nil {
		return c.CurrentTLS()
	}
	return c.TLS
}

// listenTLS is serverTLS of the moment of each handshake.
func (c Config) listenTLS() *tls.Config {
	t := c.serverTLS()
	if c.CurrentTLS != nil {
		t.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.serverTLS(), nil }
	}
	return t
}

// identify is who a certificate was issued to.
func (c Config) identify(cert *x509.Certificate) (p Peer, err error) {
	if p.ID, err = c.Identify(cert); err == nil && c.Region != nil {
		p.Region, err = c.Region(cert)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrPeerIdentity, err)
	}
	return p, nil
}

// serverTLS and clientTLS return clones for the two ends of a handshake.
func (c Config) serverTLS() *tls.Config {
	t := c.tls().Clone()
	t.MinVersion = tls.VersionTLS13
	t.NextProtos = []string{ALPN}
	t.ClientAuth = tls.RequireAndVerifyClientCert
	if t.ClientCAs == nil {
		t.ClientCAs = t.RootCAs
	}
	t.SessionTicketsDisabled = true
	return t
}

// clientTLS verifies the chain by hand: nodes are named by URI, so there is no
// host name for crypto/tls to check, and the identity is compared with want.
func (c Config) clientTLS(want PeerID) *tls.Config {
	t := c.tls().Clone()
	t.MinVersion = tls.VersionTLS13
	t.NextProtos = []string{ALPN}
	t.ClientSessionCache = nil
	t.InsecureSkipVerify = true
	t.VerifyConnection = func(cs tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: t.RootCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		if t.Time != nil {
			opts.CurrentTime = t.Time()
		}
		if err := verifyChain(cs.PeerCertificates, opts); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
		}
		p, err := c.identify(cs.PeerCertificates[0])
		if err != nil {
			return err
		}
		if p.ID != want {
			return fmt.Errorf("%w: wanted %q, the certificate names %q", ErrPeerIdentity, want, p.ID)
		}
		if c.Expect == nil {
			return nil
		}
		if err := c.Expect(want, cs.PeerCertificates[0]); err != nil {
			return fmt.Errorf("%w: %w", ErrPeerIdentity, err)
		}
		return nil
	}
	return t
}

// clip shortens s to n bytes of valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for !utf8.ValidString(s) && len(s) > 0 && len(s) > n-utf8.UTFMax {
			s = s[:len(s)-1]
		}
	}
	if !utf8.ValidString(s) {
		return fmt.Sprintf("%.*q", n/4, s)
	}
	return s
}
