package handover

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// TestVersionIsChecked has a process of another version ask for a hand-over.
func TestVersionIsChecked(t *testing.T) {
	for _, tt := range []struct{ hello, want string }{
		{"h1", ""},
		{"h2", "it wants version 2 of the hand-over, this is 1"},
		{"h0", "it wants version 0 of the hand-over, this is 1"},
		{"x1", `the other process sends 'x', want 'h'`},
		{"hone", "invalid character"},
	} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var conns [2]net.Conn
		for i, fd := range fds {
			f := os.NewFile(uintptr(fd), "pair")
			if conns[i], err = net.FileConn(f); err != nil {
				t.Fatal(err)
			}
			f.Close()
			defer conns[i].Close()
		}
		p, err := newPeer(conns[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conns[1].Write([]byte(tt.hello)); err != nil {
			t.Fatal(err)
		}
		err = (&Handover{env: &env.Env{}}).checkGreeting(p)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%q: %v", tt.hello, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: error %v, want %q", tt.hello, err, tt.want)
		}
	}
}
