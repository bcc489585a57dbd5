package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// takeOverAuto is the --take-over that finds the server itself.
const takeOverAuto = "auto"

// checkEnding says in one sentence what is wrong with --drain, --take-over and
// --handover-to-kernel, or nil.
func (f *serveFlags) checkEnding(given func(flag string) bool) error {
	if err := f.checkKernel(); err != nil {
		return err
	}
	switch pid, err := strconv.Atoi(f.takeOver); {
	case f.drain < 0:
		return fmt.Errorf("--drain %v: want a time that is not negative, such as 30s", f.drain)
	case f.takeOver == "":
		return nil
	case f.takeOver != takeOverAuto && (err != nil || pid < 1):
		return fmt.Errorf("--take-over %q: want the process id of a server, or auto", f.takeOver)
	case f.device == simDevice:
		return errors.New("--take-over is for servers on one device, and each has a software NIC " +
			"of its own: leave it out")
	case given("mac") && !f.netdevMAC:
		return errors.New("--take-over takes the other server's own MAC address: leave out --mac")
	}
	return nil
}

// meet connects to the server to take over from, if there is one.
func (s *slice) meet(ctx context.Context, f *serveFlags, cfg *stack.Config) error {
	if f.takeOver == "" {
		return nil
	}
	path, err := predecessor(f.takeOver)
	if path == "" || err != nil {
		return err
	}
	p, err := stack.MeetPredecessor(ctx, path)
	if err != nil {
		return err
	}
	s.cleanup.add(p.Close)
	cfg.Predecessor = p
	return nil
}

// predecessor returns the socket of the server that --take-over names; "" if that is auto, and none
// runs.
func predecessor(which string) (string, error) {
	all := running.Handover(running.Directories(os.Getenv))
	if which != takeOverAuto {
		pid, _ := strconv.Atoi(which)
		if path, ok := all[pid]; ok {
			return path, nil
		}
		return "", fmt.Errorf("--take-over %s: no server of this user runs as that process and "+
			"can hand over; \"rdma-netstack ss\" names those there are", which)
	}
	paths := slices.Collect(maps.Values(all))
	if len(paths) > 1 {
		return "", errors.New("--take-over auto: several servers run; say which by its process id")
	}
	return append(paths, "")[0], nil
}

// takeOverTime says how long taking over may take. It takes milliseconds.
const takeOverTime = 10 * time.Second

// takeOver has the slice receive new clients, if it takes over from another server.
func (s *slice) takeOver() error {
	ctx, cancel := context.WithTimeout(context.Background(), takeOverTime)
	defer cancel()
	return s.stack.TakeOver(ctx)
}
