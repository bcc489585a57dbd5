package hostmode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// TestPacedListener: connections of a listener with a rate have it, those that the kernel accepts
// as well: by netdev, by lo and by the bridge.
func TestPacedListener(t *testing.T) { onBoth(t, pacedListener) }

func pacedListener(t *testing.T, w *world) {
	const most = "18446744073709551615"
	s := w.start(t, "paced :8081 123456", "paced :8082 5000000000", "paced :8083 0",
		"paced :8084 "+most)
	for port, rates := range map[string]struct{ ours, kernels string }{
		"8081": {"123456", "123456"}, "8082": {"5000000000", "5000000000"},
		"8083": {"0", most}, "8084": {"0", most},
	} {
		for from, want := range map[*lab.Net]string{
			w.outside:   "stack " + rates.ours,
			w.host:      "kernel " + rates.kernels,
			w.container: "kernel " + rates.kernels,
		} {
			if got := dialPaced(t, from, port); got != want {
				t.Errorf("port %s: %q, want %q", port, got, want)
			}
		}
	}
	s.stop()
}

// dialPaced connects to a port of a paced server, and returns what that says of the connection.
func dialPaced(t *testing.T, from *lab.Net, port string) string {
	t.Helper()
	c, err := dial(from, net.JoinHostPort(hostIP, port))
	must(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	must(t, err)
	must(t, c.Close())
	return strings.TrimSpace(line)
}

// TestPacingRulesOnHost: a rule for some clients holds for their connections, whether the stack or
// the kernel has accepted them; others have the listener's rate.
func TestPacingRulesOnHost(t *testing.T) { onBoth(t, pacingRulesOnHost) }

func pacingRulesOnHost(t *testing.T, w *world) {
	s := w.start(t, "paced :8081 1000 "+outsideIP+"/32=5", "paced :8082 1000 "+hostIP+"/32=6",
		"paced :8083 1000 "+containerIP+"/32=7", "paced :8084 0 0.0.0.0/0=8 "+hostIP+"/32=0")
	for port, want := range map[string][3]string{
		"8081": {"5", "1000", "1000"}, "8082": {"1000", "6", "1000"},
		"8083": {"1000", "1000", "7"}, "8084": {"8", "18446744073709551615", "8"},
	} {
		for i, from := range []*lab.Net{w.outside, w.host, w.container} {
			want := [...]string{"stack ", "kernel ", "kernel "}[i] + want[i]
			if got := dialPaced(t, from, port); got != want {
				t.Errorf("port %s, client %d: %q, want %q", port, i, got, want)
			}
		}
	}
	s.stop()
}

// listenPaced opens a listener whose connections have a rate, those of some clients by rules
// PREFIX=RATE, and tells each peer whose its connection is, and its rate.
func listenPaced(st *stack.Stack, at, bytesPerSecond string, rules []string) (string, error) {
	rate, err := strconv.ParseUint(bytesPerSecond, 10, 64)
	if err != nil {
		return "", err
	}
	lc := st.ListenConfig()
	lc.Pacing = rate
	for _, rule := range rules {
		prefix, bytes, _ := strings.Cut(rule, "=")
		clients, err := netip.ParsePrefix(prefix)
		if err != nil {
			return "", err
		}
		each, err := strconv.ParseUint(bytes, 10, 64)
		if err != nil {
			return "", err
		}
		lc.PacingRules = append(lc.PacingRules, stack.PacingRule{Clients: clients,
			BytesPerSecond: each})
	}
	ln, err := lc.Listen(context.Background(), "tcp", at)
	if err != nil {
		return "", err
	}
	listening = append(listening, ln)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			rate, err := rateOf(c)
			if err != nil {
				fmt.Fprintln(c, err)
			} else {
				fmt.Fprintln(c, owner(c), rate)
			}
			c.Close()
		}
	}()
	return "listening on " + ln.Addr().String(), nil
}

// TestPacedSocketOnHost: the rate of a socket holds for all its datagrams, those that the kernel
// sends too: by lo, by the bridge, and by netdev again.
func TestPacedSocketOnHost(t *testing.T) { onBoth(t, pacedSocketOnHost) }

func pacedSocketOnHost(t *testing.T, w *world) {
	s := w.start(t)
	if got := s.ok("pacedudp " + outsideIP + ":9 " + hostIP + ":9 " + containerIP + ":9 " +
		outsideIP + ":9"); got != "4 datagrams, 3 waits" {
		t.Error(got)
	}
	s.stop()
}

// sendPaced sends a datagram to each peer at a rate that takes half a second for each.
func sendPaced(st *stack.Stack, peers []string) (string, error) {
	c, err := st.ListenUDP("udp4", nil)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetPacing(2000); err != nil {
		return "", err
	}
	before := st.Stats().UDPPacingWaits
	for _, p := range peers {
		to, err := netip.ParseAddrPort(p)
		if err != nil {
			return "", err
		}
		if _, err := c.WriteToUDPAddrPort(make([]byte, 1000-42), to); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d datagrams, %d waits", len(peers), st.Stats().UDPPacingWaits-before), nil
}

// rateOf returns the rate of a connection, as the stack or the kernel has it.
func rateOf(c net.Conn) (rate uint64, err error) {
	if ours, ok := c.(*stack.TCPConn); ok {
		return ours.Settings().Pacing, nil
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		rate, failed = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
	})
	return rate, errors.Join(err, failed)
}
