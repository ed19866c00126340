package main

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/internal/certs"
)

// maxAnswer bounds one message from the daemon, bytes: a list of sessions with a million block keys of 64 bytes fits.
const maxAnswer = 128 << 20

// dial makes a client of the daemon at --addr. Nothing is sent yet.
func (a *app) dial() (*grpc.ClientConn, error) {
	limit := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer))
	agent := grpc.WithUserAgent("kvferry/" + version)
	if path, ok := unixPath(a.addr); ok {
		if path == "" {
			return nil, usagef(a.addr, "unix:///PATH with an absolute path", "--addr has no path")
		}
		if a.ca != "" {
			return nil, usagef("", "--ca, --cert and --key with a host:port only; leave them out", "--addr %s is a unix socket, which has no TLS", a.addr)
		}
		return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), limit, agent)
	}
	host, port, err := net.SplitHostPort(a.addr)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
		return nil, usagef(a.addr, "unix:///PATH, or host:port such as 10.0.0.7:7440", "--addr %q is no address", a.addr)
	}
	if a.ca == "" || a.cert == "" || a.key == "" {
		return nil, usagef("", "--ca, --cert and --key (make them with 'kvferry certs issue'), or the daemon's unix socket",
			"--addr %s needs certificates", a.addr)
	}
	m, err := certs.Load(certs.Files{CA: a.ca, Cert: a.cert, Key: a.key})
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("dns:///"+a.addr, grpc.WithTransportCredentials(credentials.NewTLS(m.ClientConfig())), limit, agent)
}

// unixPath takes the forms unix:///path, unix:path and /path. A relative path is made absolute; ok without a path means
// that there is none.
func unixPath(addr string) (path string, ok bool) {
	path, ok = strings.CutPrefix(addr, "unix://")
	if !ok {
		path, ok = strings.CutPrefix(addr, "unix:")
	}
	if !ok {
		return addr, strings.HasPrefix(addr, "/")
	}
	if path == "" {
		return "", true
	}
	abs, err := filepath.Abs(path)
	if err != nil { // the working folder is gone
		return "", true
	}
	return abs, true
}
