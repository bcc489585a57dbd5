//go:build linux

package attack

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// kept waits until the server has closed or reset all of the connections, or the time is over, and
// returns the number of open ones. They are counted in the namespace's kernel: a connection is
// ESTABLISHED until the other side's FIN or RST arrives (proc_net_tcp(5)).
func (w *world) kept(conns []net.Conn, limit time.Duration) (n int) {
	w.t.Helper()
	ports := map[string]bool{}
	for _, c := range conns {
		ports[fmt.Sprintf("%04X", c.LocalAddr().(*net.TCPAddr).Port)] = true
	}
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		if n = w.established(ports); n == 0 || time.Now().After(end) {
			return n
		}
	}
}

// established counts the namespace's connections from these ports, given in the kernel's format.
func (w *world) established(ports map[string]bool) (n int) {
	must(w.t, w.ns.Do(func() error {
		f, err := os.Open("/proc/thread-self/net/tcp")
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			field := strings.Fields(lines.Text())
			if len(field) < 4 || field[3] != "01" {
				continue
			}
			if _, port, _ := strings.Cut(field[1], ":"); ports[port] {
				n++
			}
		}
		return nil
	}))
	return n
}
