package roads

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// extension returns a counter of a namespace's TcpExt, as nstat prints it.
func extension(t *testing.T, host *lab.Net, name string) (n uint64) {
	must(t, host.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := bytes.Split(text, []byte("\n"))
		names, values := bytes.Fields(lines[0]), bytes.Fields(lines[1])
		for i, is := range names {
			if string(is) == name {
				n, err = strconv.ParseUint(string(values[i]), 10, 64)
				return err
			}
		}
		return fmt.Errorf("no counter %s", name)
	}))
	return n
}

// TestLinuxIsTold: Linux sends to each kind of server on a road on which frames are late by more
// than its reordering window. It is told of what it has sent again for nothing, and takes back what
// it did to its window. Without timestamps, by which it might know it as well.
func TestLinuxIsTold(t *testing.T) {
	b := newBench(t)
	must(t, b.client.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte("0"), 0)
	}))
	r := Road{Delay: 5 * time.Millisecond, Late: 0.01, LateBy: 20 * time.Millisecond}
	for _, k := range b.kinds {
		told, undone := uint64(0), uint64(0)
		for seed := uint64(0); seed < 20 && (told == 0 || undone == 0); seed++ {
			before := [2]uint64{extension(t, b.client.Net, "TCPDSACKRecv"),
				extension(t, b.client.Net, "TCPDSACKUndo")}
			k.relay.Travel([2]*Way{NewWay(Road{Delay: r.Delay}, seed, 0), NewWay(r, seed, 1)})
			run, err := b.carry(k, traffic{flows: 1}, 500*time.Millisecond)
			must(t, err)
			told += extension(t, b.client.Net, "TCPDSACKRecv") - before[0]
			undone += extension(t, b.client.Net, "TCPDSACKUndo") - before[1]
			t.Logf("%s: %.1f MB/s, %d DSACKs, %d undone", k.name, run.rate/1e6, told, undone)
		}
		if told == 0 || undone == 0 {
			t.Errorf("%s: Linux was told %d times, and took %d losses back", k.name, told, undone)
		}
	}
}
