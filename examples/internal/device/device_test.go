package device

import (
	"io"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestSim has Linux reach a server on the software NIC, as the package comments of the examples
// say.
func TestSim(t *testing.T) {
	need.TUN(t)
	linux, err := lab.New("linux")
	if err != nil {
		t.Fatal(err)
	}
	defer linux.Close()
	var nic dv.NIC
	var done func() error
	err = linux.Do(func() (err error) {
		nic, done, err = Config("sim")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	st, err := stack.Open(t.Context(), stack.Config{
		NIC: nic, Addresses: []netip.Prefix{netip.MustParsePrefix(Address)},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := st.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := ln.Accept(); err == nil {
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	conn, err := linux.DialContext(t.Context(), "tcp", "192.0.2.10:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
}

func TestHardwareIsNamed(t *testing.T) {
	nic, done, err := Config("mlx5_0")
	if err != nil || nic.Device != "mlx5_0" || nic.Model.Kernel != nil || done() != nil {
		t.Errorf("got %+v, %v", nic, err)
	}
}
