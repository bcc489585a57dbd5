package main

import (
	"net"
	"net/http"
	"os"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// offer prints what can be tried while the demo stays: the commands, and the status page, which it
// serves until the world's end.
func (p *printer) offer(until *cleanup, st *stack.Stack, about string, commands []string) {
	if l, err := statusListener(); err == nil {
		p.report.StatusPage = "http://" + l.Addr().String() + "/"
		commands = append(commands, "curl "+p.report.StatusPage+"status   # of the status page")
		web := &http.Server{ReadHeaderTimeout: adminTime, Handler: admin.OnlyHosts(
			admin.ReadOnly(admin.Handler(admin.Config{Stack: st, About: about})))}
		until.add(web.Close)
		go web.Serve(l)
	}
	p.report.Try = commands
	p.say("\nEverything stays up until Ctrl-C. From another terminal%s:\n\n",
		map[bool]string{true: " of the same user"}[inUserNamespace()])
	for _, c := range commands {
		p.say("  %s\n", c)
	}
	if p.report.StatusPage != "" {
		p.say("\nStatus page of the slice: %s\n", p.report.StatusPage)
	}
	p.say("\n")
}

// statusListener is where the status page is served: on a free port of the loopback interface that
// the user has. In a namespace of its own the demo was started with it.
func statusListener() (net.Listener, error) {
	if file := lab.Given(); file != nil {
		defer file.Close()
		return net.FileListener(file)
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

// pageListener is a listener for a demo in another namespace; nil: there is no loopback interface.
// The caller closes it.
func pageListener() *os.File {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil
	}
	return file
}
