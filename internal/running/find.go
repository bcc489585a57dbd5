package running

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// Server describes one that runs.
type Server struct {
	PID    int
	client *http.Client
}

// ErrNone means that no server runs that we may look at.
var ErrNone = errors.New("no server of this user runs here, as far as the directories say where " +
	"servers have their admin sockets; start one with \"rdma-netstack serve\", or look as its user")

// askTime says how long a server may take for an answer.
const askTime = 10 * time.Second

// Find lists the servers with a socket in one of the directories, by process id. A socket without a
// server behind it is passed over, and removed if its process is no more.
func Find(ctx context.Context, directories []string) ([]Server, error) {
	var all []Server
	seen := map[string]bool{}
	for _, dir := range directories {
		for _, path := range sockets(dir, "unix", suffix) {
			pid, ok := processOf(path)
			if !ok || seen[path] {
				continue
			}
			seen[path] = true
			if conn, err := dial(ctx, path); err == nil {
				conn.Close()
				all = append(all, Server{pid, client(path)})
			} else if errors.Is(err, os.ErrPermission) {
				return nil, fmt.Errorf("the admin socket of process %d: %w; look as its user", pid,
					os.ErrPermission)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Server) int { return a.PID - b.PID })
	return all, nil
}

// processOf reads the process id in the name of a socket: 123.sock, and 123-2.sock for its second
// stack. Those for a process that takes over have a name of the same kind.
func processOf(path string) (pid int, ok bool) {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	name, _, _ = strings.Cut(name, "-")
	pid, err := strconv.Atoi(name)
	return pid, err == nil && pid > 0
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

func client(path string) *http.Client {
	return &http.Client{Timeout: askTime, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, path)
		},
	}}
}

// Get asks the server for the JSON at path and decodes it into v.
func (s Server) Get(ctx context.Context, path string, v any) error {
	return s.ask(ctx, http.MethodGet, path, v)
}

// Post has the server do what path names, and decodes its answer into v.
func (s Server) Post(ctx context.Context, path string, v any) error {
	return s.ask(ctx, http.MethodPost, path, v)
}

func (s Server) ask(ctx context.Context, method, path string, v any) error {
	return s.read(ctx, method, path, func(answer io.Reader) error {
		return json.NewDecoder(answer).Decode(v)
	})
}

// Sockets returns those of the server.
func (s Server) Sockets(ctx context.Context) (all []stack.Socket, err error) {
	err = s.read(ctx, http.MethodGet, "/sockets", func(r io.Reader) (err error) {
		all, err = admin.ReadSockets(r)
		return err
	})
	return all, err
}

// read asks the server, and has the answer decoded.
func (s Server) read(ctx context.Context, method, path string, decode func(io.Reader) error) error {
	body, err := s.request(ctx, s.client, method, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := decode(body); err != nil {
		return fmt.Errorf("decode what process %d says of %s: %w", s.PID, path, err)
	}
	return nil
}

// Stream posts to the server and returns the answer as it comes, however long that takes. The
// server ends it once body ends. The caller closes the answer.
func (s Server) Stream(ctx context.Context, path string, body io.Reader) (io.ReadCloser, error) {
	return s.open(ctx, http.MethodPost, path, body)
}

// Open returns the answer to a request as it comes, however long that takes. The caller closes it.
func (s Server) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	return s.open(ctx, http.MethodGet, path, nil)
}

func (s Server) open(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser,
	error) {
	return s.request(ctx, &http.Client{Transport: s.client.Transport}, method, path, body)
}

// request asks the server by client and returns the body of its answer, which the caller closes.
func (s Server) request(ctx context.Context, client *http.Client, method, path string,
	body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://server"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask process %d: %w", s.PID, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, fmt.Errorf("process %d answers %s: %s", s.PID, resp.Status,
			strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}
