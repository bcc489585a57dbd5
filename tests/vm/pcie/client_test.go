package pcie

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// client is a vfio-user client: it sends the bytes that QEMU sends.
type client struct {
	t    *testing.T
	conn *net.UnixConn
	id   uint16
	ram  []byte // guest memory at address 0
}

const guestRAM = 1 << 20

// newClient serves a function and connects to it.
func newClient(t *testing.T) (*client, *Function, *simnic.NIC) {
	t.Helper()
	return newClientOf(t, simnic.Config{Seed: 1, RealTimeClock: true},
		Config{Pacing: true})
}

// newClientOf is newClient with these configurations of the NIC and the function.
func newClientOf(t *testing.T, n simnic.Config, cfg Config) (*client, *Function, *simnic.NIC) {
	t.Helper()
	nic, err := simnic.New(n)
	if err != nil {
		t.Fatal(err)
	}
	fn := New(nic, cfg)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- fn.Serve(context.Background(), l) }()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, conn: conn}
	t.Cleanup(func() {
		conn.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		l.Close()
		fn.Close()
		nic.Close()
	})
	return c, fn, nic
}

// call sends a message and returns errno and payload of the reply.
func (c *client) call(cmd command, body []byte, fds ...int) (uint32, []byte) {
	c.t.Helper()
	c.id++
	h := make([]byte, headerSize, headerSize+len(body))
	binary.LittleEndian.PutUint16(h[0:], c.id)
	binary.LittleEndian.PutUint16(h[2:], uint16(cmd))
	binary.LittleEndian.PutUint32(h[4:], uint32(headerSize+len(body)))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix(append(h, body...), oob, nil); err != nil {
		c.t.Fatal(err)
	}
	r := make([]byte, headerSize)
	if _, err := io.ReadFull(c.conn, r); err != nil {
		c.t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint16(r); got != c.id {
		c.t.Fatalf("reply to message %d, want %d", got, c.id)
	}
	payload := make([]byte, int(binary.LittleEndian.Uint32(r[4:]))-headerSize)
	if _, err := io.ReadFull(c.conn, payload); err != nil {
		c.t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(r[12:]), payload
}

// mapRAM gives the device guest memory at address 0.
func (c *client) mapRAM() {
	c.t.Helper()
	var fd int
	fd, c.ram = ramFile(c.t, guestRAM)
	if errno, _ := c.call(cmdDMAMap, dmaMapBody(0, guestRAM, 3), fd); errno != 0 {
		c.t.Fatalf("DMA map: errno %d", errno)
	}
}

func dmaMapBody(addr, size uint64, flags uint32) []byte {
	b := words(32, flags, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, addr)
	return binary.LittleEndian.AppendUint64(b, size)
}

// config reads n bytes of the configuration space.
func (c *client) config(off uint64, n int) []byte {
	c.t.Helper()
	errno, p := c.call(cmdRegionRead, access(regionConfig, off, n))
	if errno != 0 || len(p) != 16+n {
		c.t.Fatalf("read of the configuration space at %#x: errno %d, %d bytes", off, errno, len(p))
	}
	return p[16:]
}

// load and store access BAR 0.
func (c *client) load(off uint64, n int) []byte {
	c.t.Helper()
	errno, p := c.call(cmdRegionRead, access(regionBAR0, off, n))
	if errno != 0 || len(p) != 16+n {
		c.t.Fatalf("read of BAR 0 at %#x: errno %d, %d bytes", off, errno, len(p))
	}
	return p[16:]
}

func (c *client) store(off uint64, v uint32) {
	c.t.Helper()
	body := binary.BigEndian.AppendUint32(access(regionBAR0, off, 4), v)
	if errno, _ := c.call(cmdRegionWrite, body); errno != 0 {
		c.t.Fatalf("write of BAR 0 at %#x: errno %d", off, errno)
	}
}

func access(region uint32, off uint64, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, off)
	return append(b, words(region, uint32(n))...)
}
