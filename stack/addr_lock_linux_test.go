package stack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// lockEnv has the address that a child process serves on; see TestAddressLock.
const lockEnv = "STACK_TEST_LOCK"

func openPacket(address string) (*stack.Stack, error) {
	return stack.Open(context.Background(),
		stack.Config{Uplink: stack.UplinkOptions{Backend: stack.BackendPacket},
			NIC: dv.NIC{Device: "eth0"}, Addresses: []netip.Prefix{netip.MustParsePrefix(address)},
			Addressing: stack.AddressOptions{DuplicateDetection: -1}})
}

// TestAddressLock: of two stacks on packet sockets of one netdev only one has an address, in one
// process or in two. A process that is killed leaves no lock behind, nor does one whose children
// live on.
func TestAddressLock(t *testing.T) {
	if address := os.Getenv(lockEnv); address != "" {
		s, err := openPacket(address)
		if err != nil {
			os.Stdout.WriteString("refused " + err.Error() + "\n")
			return
		}
		defer s.Close()
		sleep := exec.Command("sleep", "1000") // it inherits what is inherited
		must(t, sleep.Start())
		fmt.Println("open", sleep.Process.Pid)
		io.Copy(io.Discard, os.Stdin)
		sleep.Process.Kill()
		sleep.Wait()
		return
	}
	need.NetNS(t)
	a, err := lab.New("a")
	must(t, err)
	t.Cleanup(func() { a.Close() })
	b, err := lab.New("b")
	must(t, err)
	t.Cleanup(func() { b.Close() })
	must(t, lab.Cable(a, "eth0", b, "eth0"))
	for _, n := range []*lab.Net{a, b} {
		must(t, n.Do(func() error { return lab.Up("eth0", lab.Setup{}) }))
	}
	open := func(n *lab.Net, address string) (s *stack.Stack, err error) {
		t.Helper()
		err = n.Do(func() error {
			s, err = openPacket(address)
			return err
		})
		if s != nil {
			t.Cleanup(func() { s.Close() })
		}
		return s, err
	}
	refused := func(what, who, address string) {
		t.Helper()
		_, err := open(a, address)
		if !errors.Is(err, stack.ErrDuplicateAddress) || !strings.Contains(err.Error(), who) {
			t.Errorf("%s: %v, want a duplicate address of %s", what, err, who)
		}
	}
	first, err := open(a, "192.0.2.1/24")
	must(t, err)
	refused("in one process", "another stack of this process already has 192.0.2.1 on eth0",
		"192.0.2.1/25")
	_, err = open(a, "192.0.2.2/24")
	must(t, err)
	_, err = open(b, "192.0.2.1/24") // another network namespace's eth0
	must(t, err)
	must(t, first.Close())
	if _, err = open(a, "192.0.2.1/24"); err != nil {
		t.Error("after Close:", err)
	}

	exe, err := os.Executable()
	must(t, err)
	child := exec.Command(exe, "-test.run=^TestAddressLock$")
	child.Env = append(os.Environ(), lockEnv+"=192.0.2.3/24")
	in, err := child.StdinPipe()
	must(t, err)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, a.Start(child))
	t.Cleanup(func() { child.Process.Kill() })
	var sleep int
	if _, err := fmt.Fscanf(out, "open %d", &sleep); err != nil {
		t.Fatalf("the child has not opened a stack: %v", err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(sleep); err == nil {
			p.Kill()
		}
	})
	refused("of another process", "process ", "192.0.2.3/24")
	must(t, child.Process.Kill())
	child.Wait()
	in.Close()
	if _, err = open(a, "192.0.2.3/24"); err != nil {
		t.Error("after it was killed:", err)
	}
}
