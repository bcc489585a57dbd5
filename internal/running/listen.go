// Package running connects the commands that look at a server to the server that runs: each server
// has a unix socket named after its process in a directory that only its user can enter.
package running

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// suffix of the name of a socket, after the process id.
const suffix = ".sock"

// handoverSuffix is that of sockets for a process that takes over.
const handoverSuffix = ".handover"

// Directories returns where sockets are, the best first: the directories that systemd has made for
// the service, of RuntimeDirectory=, or else root's and then the user's. One need not exist. A
// service with a directory of its own neither sees nor replaces the servers of others.
func Directories(env func(string) string) (all []string) {
	if d := env("RUNTIME_DIRECTORY"); d != "" { // separated by colons: systemd.exec(5)
		return filepath.SplitList(d)
	}
	all = append(all, "/run/rdma-netstack")
	if d := env("XDG_RUNTIME_DIR"); d != "" {
		all = append(all, filepath.Join(d, "rdma-netstack"))
	}
	return all
}

// ListenHandover makes this process's socket for another process that takes over from it, as
// Listen does: of network unixpacket, which keeps messages apart.
func ListenHandover(directories []string) (*net.UnixListener, error) {
	l, err := listenAt(directories, "unixpacket", handoverSuffix)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Handover returns the sockets of servers that another may take over from, by process id.
func Handover(directories []string) map[int]string {
	all := map[int]string{}
	for _, dir := range slices.Backward(directories) { // the best directory last
		for _, path := range sockets(dir, "unixpacket", handoverSuffix) {
			pid, ok := processOf(path)
			if ok && pid != os.Getpid() && serves("unixpacket", path) == nil {
				all[pid] = path
			}
		}
	}
	return all
}

// Listen makes this process's socket in the first directory where it can. Others than the user may
// not connect. Closing the listener removes the socket.
func Listen(directories []string) (net.Listener, error) {
	return listenAt(directories, "unix", suffix)
}

func listenAt(directories []string, network, suffix string) (net.Listener, error) {
	var errs []error
	for _, dir := range directories {
		l, err := listenIn(dir, network, suffix)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no directory for a socket: %w", errors.Join(errs...))
}

func listenIn(dir, network, suffix string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := private(dir); err != nil {
		return nil, err
	}
	sockets(dir, network, suffix)
	path := filepath.Join(dir, strconv.Itoa(os.Getpid())+suffix)
	for n := 2; serves(network, path) == nil; n++ { // a process may have several stacks
		path = filepath.Join(dir, fmt.Sprintf("%d-%d%s", os.Getpid(), n, suffix))
	}
	// what is there is of a process that had our id before
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen(network, path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serves returns nil if a server is behind a socket.
func serves(network, path string) error {
	conn, err := net.Dial(network, path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// sockets returns those in a directory, but for what killed processes have left there, which it
// removes, where it may.
func sockets(dir, network, suffix string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "*"+suffix))
	return slices.DeleteFunc(names, func(path string) bool {
		return left(network, path) && os.Remove(path) == nil
	})
}

// left says whether a process that there is no more has left a socket. One that nobody listens to
// may be new: its process is about to listen.
func left(network, path string) bool {
	pid, ok := processOf(path)
	return ok && errors.Is(unix.Kill(pid, 0), unix.ESRCH) &&
		errors.Is(serves(network, path), unix.ECONNREFUSED)
}

// private refuses a directory that others own or can write to.
func private(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s belongs to another user, or others may write to it", dir)
	}
	return nil
}
