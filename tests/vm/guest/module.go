//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loadModules loads the modules of a set of /mod in their order.
func loadModules(set string) (string, error) {
	order, err := os.ReadFile(filepath.Join("/mod", set))
	if err != nil {
		return "", err
	}
	var loaded []string
	for _, name := range strings.Fields(string(order)) {
		f, err := os.Open(filepath.Join("/mod", name))
		if err != nil {
			return "", err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("load %s: %w", name, err)
		}
		loaded = append(loaded, name)
	}
	return strings.Join(loaded, " "), nil
}

// kernelLog is the kernel's log, including messages that the console does not show.
func kernelLog() (string, error) {
	b := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	return string(b[:max(n, 0)]), err
}

// unloadModules removes the named modules, in that order.
func unloadModules(names []string) error {
	for _, n := range names {
		if err := unix.DeleteModule(n, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unload %s: %w", n, err)
		}
	}
	return nil
}
