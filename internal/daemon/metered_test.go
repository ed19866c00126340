package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Headers of frames are found in any pieces that they come in.
func TestFrames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var wire bytes.Buffer
	var want []frame
	out := http2.NewFramer(&wire, nil)
	out.AllowIllegalWrites = true
	for range 300 {
		f := frame{int64(rng.IntN(400)), byte(rng.IntN(12)), byte(rng.IntN(256)), rng.Uint32() &^ (1 << 31)}
		if err := out.WriteRawFrame(http2.FrameType(f.kind), http2.Flags(f.flags), f.stream|uint32(rng.IntN(2))<<31, make([]byte, f.length)); err != nil {
			t.Fatal(err)
		}
		want = append(want, f)
	}
	for most := 1; most < 1500; most *= 3 {
		var found frames
		var got []frame
		for b := wire.Bytes(); len(b) > 0; {
			n := min(len(b), 1+rng.IntN(most))
			found.each(b[:n], func(f frame) bool { got = append(got, f); return true })
			b = b[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pieces of up to %d bytes other frames are found", most)
		}
	}
}

// meteredServer is a gRPC server whose calls take one message and go on until it is told to end them.
type meteredServer struct {
	t      *testing.T
	meter  *meter
	listen *bufconn.Listener
	end    chan struct{}
	cuts   chan int64 // capacity: as many as a test makes
}

func newMeteredServer(t *testing.T, most, mostOf int64) *meteredServer {
	s := &meteredServer{t: t, listen: bufconn.Listen(1 << 16), end: make(chan struct{}), cuts: make(chan int64, 8)}
	s.meter = &meter{most: most, mostOf: mostOf, cut: func(_ string, held int64) { s.cuts <- held }}
	s.meter.mu.of = map[string]int64{}
	srv := grpc.NewServer(grpc.Creds(meteredCreds{localCreds{}, s.meter}), grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(maxMessage),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			var m []byte
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			if err := stream.SendMsg(&[]byte{1}); err != nil || len(m) == 0 {
				return err
			}
			select {
			case <-s.end:
			case <-stream.Context().Done():
			}
			return nil
		}))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(s.listen) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *meteredServer) dial() *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.listen.DialContext(ctx) }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call makes a call with a request of n bytes, which the server has when this returns.
func (s *meteredServer) call(ctx context.Context, conn *grpc.ClientConn, n int) (grpc.ClientStream, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/x/y", grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return nil, err
	}
	in := make([]byte, n)
	if err := errors.Join(stream.SendMsg(&in), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var out []byte
	return stream, stream.RecvMsg(&out)
}

func (s *meteredServer) held() (n int64) {
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	for _, v := range s.meter.mu.of {
		n += v
	}
	return n
}

// What the requests of a connection's calls take is bounded, and of a caller's connections together; the connection that goes beyond it is
// closed, others go on, and what has ended is not counted.
func TestRequestsBounded(t *testing.T) {
	const size, prefix = 100_000, 5 // of a message
	s := newMeteredServer(t, 10*size, 4*size)
	one, two, three := s.dial(), s.dial(), s.dial()
	for range 20 { // one after the other
		if _, err := s.call(t.Context(), one, 0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "calls that have ended are not counted", func() bool { return s.held() == 0 })
	open := func(conn *grpc.ClientConn, n int) (err error) {
		t.Helper()
		for range n {
			if _, err = s.call(t.Context(), conn, size); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(open(one, 3), open(two, 3)); err != nil {
		t.Fatal(err)
	}
	if n := s.held(); n != 6*(size+prefix) {
		t.Errorf("%d bytes are counted of 6 requests of %d", n, size+prefix)
	}
	if err := open(one, 1); status.Code(err) != codes.Unavailable {
		t.Errorf("a connection with four requests, which are more than may be: %v", err)
	}
	if held := <-s.cuts; held <= 3*size || held > 4*size {
		t.Errorf("it had %d bytes", held)
	}
	eventually(t, "what it had is not counted", func() bool { return s.held() == 3*(size+prefix) })
	four := s.dial()
	if err := errors.Join(open(three, 3), open(four, 3)); err != nil { // nine in all
		t.Fatal(err)
	}
	if err := open(s.dial(), 1); status.Code(err) != codes.Unavailable {
		t.Errorf("ten requests of a caller, which are more than may be: %v", err)
	}
	if held := <-s.cuts; held > size {
		t.Errorf("it had %d bytes", held)
	}
	if _, err := s.call(t.Context(), two, 0); err != nil {
		t.Errorf("another connection: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := s.call(ctx, two, size/2); err != nil {
		t.Error(err)
	}
	cancel() // the client's end
	eventually(t, "a cancelled call is not counted", func() bool { return s.held() == 9*(size+prefix) })
	close(s.end)
	eventually(t, "nothing is counted", func() bool { return s.held() == 0 })
}

// The daemon's own server has these bounds: a connection that keeps five of the largest requests open is closed, and counted.
func TestLargeRequestsBounded(t *testing.T) {
	n := newRealNode(t, nil)
	if _, err := n.engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()}); err != nil {
		t.Fatal(err)
	}
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, maxMessage-1024))
	var cut error
	held := 0
	for ; held < 6 && cut == nil; held++ {
		req := &pb.EventsRequest{EngineId: "e"}
		req.ProtoReflect().SetUnknown(unknown) // a field that nobody knows
		stream, err := n.engine.Events(t.Context(), req)
		if err == nil {
			if head, _ := stream.Header(); head == nil { // it has ended
				_, err = stream.Recv()
			}
		}
		cut = err
	}
	if held != maxConnRequests/maxMessage+1 || status.Code(cut) != codes.Unavailable {
		t.Errorf("%d large requests at a time: %v", held, cut)
	}
	if got := n.refusedConns("unix"); got != 1 {
		t.Errorf("%v connections are counted as closed", got)
	}
	eventually(t, "the next connection is served", func() bool {
		_, err := n.region.Status(t.Context(), &pb.StatusRequest{})
		return err == nil
	})
}

// pieces is a connection from which bytes come as they were put there.
type pieces struct {
	net.Conn
	next []byte
}

func (p *pieces) Read(b []byte) (int, error)  { return copy(b, p.next), nil }
func (p *pieces) Write(b []byte) (int, error) { return len(b), nil }
func (p *pieces) Close() error                { return nil }

// Whatever bytes come and go over a metered connection, in whatever pieces: what is counted is what the running calls' frames said, within
// the bounds, and nothing when it is closed.
func FuzzMetered(f *testing.F) {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	w := http2.NewFramer(&b, nil)
	for _, err := range []error{
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x")}), w.WriteData(1, false, make([]byte, 300)), w.WriteData(3, true, nil),
		w.WriteRSTStream(1, http2.ErrCodeCancel),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes(), b.Bytes()[len(http2.ClientPreface):], uint8(7))
	f.Add(b.Bytes()[:b.Len()-13], []byte{}, uint8(255))
	f.Fuzz(func(t *testing.T, in, out []byte, piece uint8) {
		cut := 0
		m := &meter{most: 1 << 12, mostOf: 1 << 11, cut: func(string, int64) { cut++ }}
		m.mu.of = map[string]int64{"other": 1 << 11}
		p := &pieces{}
		c := newMeteredConn(p, m, "who")
		for len(in)+len(out) > 0 && cut == 0 {
			n := min(len(in), int(piece)+1)
			p.next, in = in[:n], in[n:]
			if got, err := c.Read(make([]byte, n)); (err != nil) != (cut == 1) || err == nil && got != n {
				t.Fatalf("%d of %d bytes: %v", got, n, err)
			}
			n = min(len(out), int(piece)+1)
			if _, err := c.Write(out[:n]); err != nil {
				t.Fatal(err)
			}
			out = out[n:]
			var sum int64
			for _, v := range c.mu.calls {
				sum += v
			}
			if sum != c.mu.held || sum < 0 || sum > m.mostOf || m.mu.of["who"] != sum {
				t.Fatalf("%d bytes of calls, %d of the connection, %d of the caller", sum, c.mu.held, m.mu.of["who"])
			}
		}
		if err := c.Close(); err != nil || len(m.mu.of) != 1 {
			t.Fatalf("left: %v, %v", m.mu.of, err)
		}
	})
}
