package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/privileges"
)

// confinement holds what a server gives up once it listens.
type confinement struct {
	keep, seccomp, landlock bool
	reads                   []string // files and directories that it serves
}

func (c *confinement) addTo(cmd *cobra.Command) {
	addFlags(cmd, "Privileges, once the server listens",
		opt("keep-privileges", "", &c.keep, "keep all capabilities. Without this flag the server "+
			"gives up those that it no longer needs, and those of programs it might execute. It "+
			"keeps CAP_NET_RAW, for queues in error and devices that return, CAP_IPC_LOCK if the "+
			"limit of locked memory is finite, and with --address host CAP_NET_BIND_SERVICE and "+
			"CAP_NET_ADMIN. The log has the list with --json-logs"),
		opt("seccomp", "", &c.seccomp, "refuse system calls that a server does not make "+
			"(seccomp)"),
		opt("landlock", "", &c.landlock, "leave it, of the files of this machine, what it "+
			"serves, /etc, /proc, /sys, /usr/share and the device nodes, and the directory of its "+
			"admin socket (Landlock)"))
}

// readsFiles adds files to those that are served, which may be replaced by others of the name.
func (c *confinement) readsFiles(names []string) {
	for _, name := range names {
		c.reads = append(c.reads, filepath.Dir(name))
	}
}

// confine gives up what the flags say. What cannot be given up ends a server that was told to, and
// is logged otherwise.
func (f *serveFlags) confine(log *slog.Logger) error {
	if !f.confined.keep {
		if err := f.dropCapabilities(log); err != nil {
			return err
		}
	}
	if f.confined.landlock { // before the filter, which refuses it
		if err := privileges.Restrict(f.confined.paths()); err != nil {
			return fmt.Errorf("--landlock: %w", err)
		}
	}
	if f.confined.seccomp {
		if err := privileges.Filter(); err != nil {
			return fmt.Errorf("--seccomp: %w", err)
		}
	}
	return nil
}

// dropCapabilities gives up those that the server no longer needs.
func (f *serveFlags) dropCapabilities(log *slog.Logger) error {
	held, err := privileges.Held()
	if err != nil {
		log.Info("the server's capabilities stay as they are", "reason", err)
		return nil
	}
	keep := f.needed()
	err = privileges.Drop(keep...)
	switch {
	case errors.Is(err, privileges.ErrUnsupported) && len(held) > 0:
		log.Warn("the server keeps all capabilities", "reason", err)
		return nil
	case err != nil && !errors.Is(err, privileges.ErrUnsupported):
		return fmt.Errorf("give up capabilities (--keep-privileges leaves them): %w", err)
	}
	var kept []string
	held, _ = privileges.Held()
	for _, c := range held {
		kept = append(kept, capabilityUses()[c])
	}
	log.Info("capabilities given up", "kept", strings.Join(kept, "; "))
	return nil
}

// capabilityUses names the capabilities that a server may keep, and says what each is for.
func capabilityUses() map[privileges.Capability]string {
	return map[privileges.Capability]string{
		privileges.NetRaw: "CAP_NET_RAW: queues in error are replaced, " +
			"devices that return opened",
		privileges.IPCLock:        "CAP_IPC_LOCK: memory of these is beyond the limit",
		privileges.NetBindService: "CAP_NET_BIND_SERVICE: ports of addresses that the host gets",
		privileges.NetAdmin:       "CAP_NET_ADMIN: the filters of these",
	}
}

// needed returns the capabilities that an open server still needs. The software NIC needs none,
// unless its addresses are to be registered with an interface of this machine.
func (f *serveFlags) needed() (all []privileges.Capability) {
	if f.device == simDevice && f.sim.netdev == "none" {
		return nil
	}
	all = append(all, privileges.NetRaw)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil ||
		limit.Cur != math.MaxUint64 {
		all = append(all, privileges.IPCLock)
	}
	if f.sources.host {
		all = append(all, privileges.NetBindService, privileges.NetAdmin)
	}
	return all
}

// paths returns what the server may open: what it serves, facts about the machine, names and types
// of its configuration, and the nodes of its devices.
func (c *confinement) paths() privileges.Paths {
	p := privileges.Paths{
		Read:    []string{"/etc", "/proc", "/sys", "/usr/share"},
		Write:   running.Directories(os.Getenv),
		Devices: []string{"/dev/infiniband"},
	}
	for _, path := range c.reads {
		if path != "" {
			p.Read = append(p.Read, path)
		}
	}
	return p
}
