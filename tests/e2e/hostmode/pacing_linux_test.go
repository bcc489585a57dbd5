package hostmode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
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
			c, err := dial(from, net.JoinHostPort(hostIP, port))
			must(t, err)
			line, err := bufio.NewReader(c).ReadString('\n')
			must(t, err)
			must(t, c.Close())
			if got := strings.TrimSpace(line); got != want {
				t.Errorf("port %s: %q, want %q", port, got, want)
			}
		}
	}
	s.stop()
}

// listenPaced opens a listener whose connections have a rate, and tells each peer whose its
// connection is, and its rate.
func listenPaced(st *stack.Stack, at, bytesPerSecond string) (string, error) {
	rate, err := strconv.ParseUint(bytesPerSecond, 10, 64)
	if err != nil {
		return "", err
	}
	lc := st.ListenConfig()
	lc.Pacing = rate
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
