package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// adminTime says how long a client of the admin socket may take for its request.
const adminTime = 10 * time.Second

// serveAdmin serves the admin endpoint on the unix socket where the commands look for it, and on
// --admin. Without a directory for the socket the server runs without it, and says so.
func (s *slice) serveAdmin(f *serveFlags, log *slog.Logger) error {
	srv := &http.Server{
		Handler: admin.Handler(admin.Config{
			Stack: s.stack, About: s.about, Debug: f.debug,
			Checks: []admin.Check{{Name: "device", Run: s.stack.Unhealthy}},
		}),
		ReadHeaderTimeout: adminTime,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	s.cleanup.add(srv.Close)
	l, err := running.Listen(running.Directories(os.Getenv))
	switch {
	case err == nil:
		go srv.Serve(l)
	default:
		log.Info("the commands status, ss and top will not find this server", "reason",
			err)
	}
	if f.admin == "" {
		return nil
	}
	tcp, err := net.Listen("tcp", f.admin)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	public := &http.Server{Handler: admin.OnlyHosts(admin.ReadOnly(srv.Handler), f.adminNames()...),
		ReadHeaderTimeout: adminTime, ErrorLog: srv.ErrorLog}
	s.cleanup.add(public.Close)
	go public.Serve(tcp)
	return nil
}

// adminNames returns the names by which others may ask --admin: this machine's, the one that it was
// given, and those of --admin-host.
func (f *serveFlags) adminNames() []string {
	names := slices.Clone(f.adminHosts)
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	if name, _, err := net.SplitHostPort(f.admin); err == nil && name != "" {
		names = append(names, name)
	}
	return names
}

// checkAdmin refuses what cannot be listened on, and names without an address.
func (f *serveFlags) checkAdmin() error {
	if f.admin == "" {
		if len(f.adminHosts) > 0 {
			return errors.New("--admin-host is for --admin ADDRESS:PORT: give that, too")
		}
		return nil
	}
	if _, port, err := net.SplitHostPort(f.admin); err != nil || port == "" {
		return fmt.Errorf("--admin %q: want ADDRESS:PORT of this machine, such as 127.0.0.1:9100",
			f.admin)
	}
	return nil
}
