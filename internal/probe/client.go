// Package probe is a client on the far side of the wire: ping, HTTP and DNS from inside a network
// namespace, with the programs people know (ping, curl, dig) where they are installed and with Go
// on kernel sockets where not.
//
// Every answer is checked: bodies byte for byte against httpd's pattern, echoes by identity and
// payload.
package probe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// Client sends from one namespace. Its methods may be called from several goroutines.
type Client struct {
	net      *lab.Net
	programs map[string]string // name -> path, of those to use
}

// New returns a client in this namespace that uses those of the named programs (ping, curl, dig)
// that are installed.
func New(n *lab.Net, programs ...string) *Client {
	c := &Client{net: n, programs: map[string]string{}}
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			c.programs[name] = path
		}
	}
	return c
}

// Program says who does what the named program would do.
func (c *Client) Program(program string) string {
	if _, ok := c.programs[program]; ok {
		return program
	}
	return "Go client"
}

// runProgram runs an installed program in the namespace until it ends or ctx does.
func (c *Client) runProgram(
	ctx context.Context,
	stdin io.Reader,
	stdout io.Writer,
	program string,
	args ...string,
) error {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, c.programs[program], args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	err := c.net.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf(
			"%s %s: %w %s",
			program,
			strings.Join(args, " "),
			err,
			firstLine(stderr.String()),
		)
	}
	return nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}
