package hostmode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/stack"
	software "github.com/rdma-netstack/rdma-netstack/tests/lib/card"
)

// ringsEnv has a server make a card, of which another process has the block of ports that it says.
const ringsEnv = "HOSTMODE_RINGS"

// cardMAC is the address of eth0 on a card.
var cardMAC = net.HardwareAddr{2, 0, 0x5e, 0, 0x53, 0x10}

// onBoth runs a test on packet sockets of a veth, and on a card; or on the card that is given.
func onBoth(t *testing.T, test func(*testing.T, *world)) {
	if far := os.Getenv(givenEnv); far != "" {
		test(t, newGivenWorld(t, far))
		return
	}
	for name, rings := range map[string]bool{"packet sockets": false, "rings": true} {
		t.Run(name, func(t *testing.T) { test(t, newWorldOn(t, rings)) })
	}
}

// makeCard lays the cable to the port of a card, and makes its netdev.
func (w *world) makeCard(t testing.TB) {
	t.Helper()
	must(t, lab.Cable(w.host, "port0", w.outside, "eth0"))
	must(t, w.host.Do(func() error { return software.Netdev("eth0", "port0", cardMAC) }))
}

// card is a software ConnectX in a server's process. Nil is none.
type card struct {
	nic     *simnic.NIC
	another *dv.Device // of another process, as far as the stack can tell

	mu   sync.Mutex
	node uverbs.Kernel // that the stack has opened last; guarded by mu, as is gone
	gone bool          // the RDMA device is not there; its netdev is
}

// open opens the node for the stack.
func (c *card) open() (uverbs.Kernel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, unix.EIO
	}
	node, err := kernel.Opener(c.nic)()
	c.node = node
	return node, err
}

// setGone has the RDMA device go, with what was made by it, or come back.
func (c *card) setGone(gone bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = gone
	if gone {
		return c.node.Close()
	}
	return nil
}

// openCard makes a card and has cfg use it. Another process has the ports that taken says.
func openCard(cfg *stack.Config, taken string) (*card, error) {
	nic, config, err := software.Open("eth0", "port0", cardMAC)
	if err != nil {
		return nil, err
	}
	c := &card{nic: nic}
	config.RxQueues, config.TxQueues, config.HostMode = 2, 2, true
	config.Model.Facts.Netdev = cfg.NIC.Device
	c.another, err = dv.Open(context.Background(), config)
	config.Model.Kernel, config.HostMode = c.open, false
	cfg.NIC = config.NIC
	if err == nil && taken != "" {
		err = c.steal(taken)
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// steal adds a rule of the other process for TCP: "61440/256".
func (c *card) steal(ports string) error {
	r := dv.HostRule{Priority: dv.PriorityListener, Proto: 6, Addr: netip.MustParseAddr(hostIP)}
	if _, err := fmt.Sscanf(ports, "%d/%d", &r.Port, &r.Ports); err != nil {
		return err
	}
	if r.Ports > 1 {
		r.Priority = dv.PriorityBlock
	}
	_, err := c.another.AddRule(r)
	return err
}

func (c *card) close() error {
	if c.another != nil {
		c.another.Close()
	}
	return c.nic.Close()
}

// command does what a line says about the card; no answer: it does not.
func (c *card) command(st *stack.Stack, words []string) (string, error) {
	if c == nil {
		return "", nil
	}
	switch words[0] {
	case "steal":
		return "stolen", c.steal(words[1])
	case "lose":
		return "lost", c.setGone(true)
	case "return":
		return "returned", c.setGone(false)
	case "portmtu": // what the kernel's driver sets with the netdev's
		mtu, err := strconv.Atoi(words[1])
		if err == nil {
			err = c.nic.SetMTU(mtu)
		}
		return "set", err
	case "rules": // of ports
		var all []string
		for _, r := range st.Rules() {
			match, _, _ := strings.Cut(r.Match, ", MAC")
			if !strings.HasPrefix(match, "fr") { // fragments, frames with a VLAN tag
				all = append(all, strings.TrimSuffix(match+" "+r.Waiting, " "))
			}
		}
		return strings.Join(all, ", "), nil
	}
	return "", nil
}

// steered requires that the frames of a server have come to its rings: by packet sockets have come
// what neighbours say and fragments only.
func (s *server) steered(t *testing.T, fragments int) {
	t.Helper()
	var got stack.HostStats
	must(t, json.Unmarshal([]byte(s.ok("stats")), &got))
	if most := uint64(100 + 2*fragments); !got.Rules || got.Unsteered > most {
		t.Errorf("%+v: want rules, and few frames unsteered", got)
	}
}
