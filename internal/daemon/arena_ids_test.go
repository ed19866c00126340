package daemon

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// arenaIDs is the memory of an engine's client: it puts the arena id of the latest registration into each call that names
// that engine and no arena. A test that wants another id gives it.
type arenaIDs struct {
	mu sync.Mutex
	of map[string]string // by engine
}

func newArenaIDs() *arenaIDs { return &arenaIDs{of: map[string]string{}} }

func (a *arenaIDs) fill(req any) {
	m, ok := req.(interface {
		engineCall
		proto.Message
	})
	if !ok || m.GetArenaId() != "" {
		return
	}
	a.mu.Lock()
	id := a.of[m.GetEngineId()]
	a.mu.Unlock()
	r := m.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName("arena_id"), protoreflect.ValueOfString(id))
}

func (a *arenaIDs) learn(req, resp any) {
	if q, ok := req.(*pb.RegisterEngineRequest); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.of[q.GetEngineId()] = resp.(*pb.RegisterEngineResponse).GetArenaId()
	}
}

func (a *arenaIDs) unary() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if m, ok := req.(proto.Message); ok {
			req = proto.Clone(m) // the test's own stays as it is
		}
		a.fill(req)
		err := call(ctx, method, req, resp, conn, opts...)
		if err == nil {
			a.learn(req, resp)
		}
		return err
	})
}

func (a *arenaIDs) stream() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		return &arenaIDStream{s, a}, err
	})
}

type arenaIDStream struct {
	grpc.ClientStream
	ids *arenaIDs
}

func (s *arenaIDStream) SendMsg(m any) error {
	s.ids.fill(m)
	return s.ClientStream.SendMsg(m)
}
