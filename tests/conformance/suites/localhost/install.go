//go:build linux && rdma_overlay

package localhost

import (
	"context"
	"net"
	"os"
	"syscall"

	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

// slicesOfProcess suffices for the tests that it serves: a socket shares a slice where more are
// open at once.
const slicesOfProcess = 16

// Install makes package net ask a new Host for sockets until the process ends. Before it nothing
// else may use package net, which rdma-netstack build has made.
func Install() error {
	h, err := Open(context.Background(), slicesOfProcess)
	if err != nil {
		return err
	}
	if to := os.Getenv(NotesVariable); to != "" {
		h.notes.writeTo(to)
	}
	net.RDMASetHooks(&net.RDMAHooks{
		Open: func(ctx context.Context, network string, laddr, raddr net.Addr,
			control func(syscall.RawConn) error) (net.RDMASocket, net.Conn, error) {
			s, c, err := h.OpenSocket(ctx, network, laddr, raddr, control)
			if s == nil {
				return nil, c, err
			}
			return s, c, err
		},
		InterfaceAddrs: func(*net.Interface) ([]net.Addr, bool) { return nil, false },
		FromFile: func(f *os.File) (net.RDMASocket, bool) {
			return h.SocketOf(func(p *unmodified.Program) (unmodified.Socket, bool) {
				return p.FromFile(f)
			})
		},
		NoteRaw: func(string) {},
	})
	return nil
}
