//go:build linux

package attack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// kinds are the faults that a faulty server can be told to inject.
var kinds = map[string]simnic.QueueFaultKind{"send": simnic.FaultSendError,
	"receive": simnic.FaultReceiveError, "pause": simnic.FaultPause,
	"unlink": simnic.FaultHoldWithoutLink}

// faultyServer is the child process of the tests of NIC faults: a web server on a slice of a
// software NIC. Its faults are controlled by lines of standard input: "send COUNT RATE" and
// likewise "receive", "pause" and "unlink" replace the current fault, "none" ends it. "unlink" also
// takes the link down. Each command is answered by a line.
func faultyServer(queues string, in io.Reader, out, log io.Writer) int {
	n, err := strconv.Atoi(queues)
	if err != nil {
		fmt.Fprintln(log, err)
		return 1
	}
	nic, err := serveFaulty(n, log)
	if err != nil {
		fmt.Fprintln(log, err)
		return 1
	}
	fmt.Fprintln(out, "serving on the software NIC")
	var now *simnic.Injection
	for lines := bufio.NewScanner(in); lines.Scan(); {
		nic.SetLink(!strings.HasPrefix(lines.Text(), "unlink"))
		if now != nil {
			now.Remove()
			now = nil
		}
		if f := strings.Fields(lines.Text()); len(f) == 3 {
			count, _ := strconv.Atoi(f[1])
			share, _ := strconv.ParseFloat(f[2], 64)
			now = nic.Inject(simnic.QueueFault{Kind: kinds[f[0]], Count: count,
				Rate: share, Seed: 1, Syndrome: 4})
		}
		fmt.Fprintln(out, "done")
	}
	return 0
}

func serveFaulty(queues int, log io.Writer) (*simnic.NIC, error) {
	wire, err := wire.OpenTAP(port)
	if err != nil {
		return nil, err
	}
	if err := lab.Up(port,
		lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix(client4 + "/24")}}); err != nil {
		return nil, err
	}
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return nil, err
	}
	if err := nic.ConnectWire(wire); err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(log, nil))
	st, err := stack.Open(context.Background(), stack.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts: dv.PortFacts{Name: "sim", MAC: nic.MAC(),
					MTU: nic.MTU()},
			}, MAC: mustMAC(),
			RxQueues: queues, TxQueues: queues,
		},
		Addresses:  []netip.Prefix{netip.MustParsePrefix(server4 + "/24")},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
		Logger:     logger,
	})
	if err != nil {
		return nil, err
	}
	ln, err := st.Listen("tcp", ":80")
	if err != nil {
		return nil, err
	}
	go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		io.WriteString(w, page)
	}))
	return nic, nil
}
