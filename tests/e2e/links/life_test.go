//go:build linux

package links

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	gcontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/muxed"
	"gvisor.dev/gvisor/pkg/tcpip/link/tun"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// hangs is the time limit of a call that should return at once.
const hangs = 20 * time.Second

func interfaceIndex(t *testing.T, name string) int {
	t.Helper()
	ifc, err := net.InterfaceByName(name)
	must(t, err)
	return ifc.Index
}

func open(t *testing.T, link gstack.LinkEndpoint, last byte) *stack.Stack {
	t.Helper()
	s, err := stack.New(link, stack.Config{Addresses: addresses(last),
		Addressing: stack.AddressOptions{DuplicateDetection: -1}})
	must(t, err)
	return s
}

// closes fails the test if concurrent calls of Close do not end a stack in time.
func closes(t *testing.T, stacks ...*stack.Stack) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all sync.WaitGroup
		for _, s := range stacks {
			all.Go(func() { s.Close() })
			all.Go(func() { s.Close() })
		}
		all.Wait()
	}()
	select {
	case <-done:
	case <-time.After(hangs):
		t.Fatalf("Close hangs for %v", hangs)
	}
}

// TestCloseInUse exchanges data over each link and closes both stacks during further exchanges,
// several times.
func TestCloseInUse(t *testing.T) {
	for _, c := range cables() {
		t.Run(c.name, func(t *testing.T) {
			for range 8 {
				a, b := c.open(t)
				closeInUse(t, a, b)
			}
		})
	}
}

func closeInUse(t *testing.T, a, b gstack.LinkEndpoint) {
	t.Helper()
	server, client := open(t, a, 1), open(t, b, 2)
	ln, err := server.Listen("tcp", ":80")
	must(t, err)
	var served sync.WaitGroup
	served.Go(func() { echo(ln) })
	conn, err := client.Dial("tcp", "192.0.2.1:80")
	must(t, err)
	must(t, exchange(conn))
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() { keepBusy(client) })
	}
	closes(t, server, client)
	busy.Wait()
	served.Wait()
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
}

// TestCloseSharedMemory closes stacks on both ends of a shared memory. Its server end ends with the
// next packet; when none comes, Close waits for a second.
func TestCloseSharedMemory(t *testing.T) {
	client, server := openShared(t)
	closeInUse(t, server, client)
}

// TestMuxed: a link that cannot be an interface of netstack is refused with a message.
func TestMuxed(t *testing.T) {
	_, err := stack.New(muxed.NewInjectableEndpoint(nil), stack.Config{Addresses: addresses(1)})
	if err == nil || !strings.Contains(err.Error(), "give the link below it") {
		t.Errorf("%v", err)
	}
}

// TestCloseTUN closes a stack to which a device of gVisor's tun package has added an interface,
// while packets are written into it.
func TestCloseTUN(t *testing.T) {
	a, b := openVeth(t)
	defer b.Close()
	s := open(t, a, 1)
	var d tun.Device
	ctx := gcontext.Background()
	must(t, d.SetIff(ctx, s.Netstack(), "tun0", tun.Flags{TUN: true, NoPacketInfo: true}))
	defer d.Release(ctx)
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for {
				packet := buffer.NewViewWithData(make([]byte, header.IPv4MinimumSize))
				packet.AsSlice()[0] = 0x45
				_, err := d.Write(packet)
				packet.Release()
				if err != nil { // the interface is gone
					return
				}
			}
		})
	}
	closes(t, s)
	busy.Wait()
}

// TestCloseXDP closes a stack on an AF_XDP socket, whose link waits for itself.
func TestCloseXDP(t *testing.T) {
	s := open(t, openXDP(t), 1)
	_, err := s.Listen("tcp", ":80")
	must(t, err)
	closes(t, s)
}

func echo(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			io.Copy(conn, conn)
			conn.Close()
		}()
	}
}

// exchange sends 64 KiB there and back.
func exchange(conn net.Conn) error {
	const size = 64 << 10
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, size))
		sent <- err
	}()
	conn.SetReadDeadline(time.Now().Add(hangs))
	_, err := io.ReadFull(conn, make([]byte, size))
	return errors.Join(err, <-sent)
}

// keepBusy opens connections and sends until the stack is closed.
func keepBusy(s *stack.Stack) {
	for {
		conn, err := s.Dial("tcp", "192.0.2.1:80")
		if err != nil {
			return
		}
		err = exchange(conn)
		conn.Close()
		if err != nil {
			return
		}
	}
}
