// Command memberlist has a member that returns each message to who is named in front of it.
package main

import (
	"bytes"
	"log"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

type echo struct {
	list atomic.Pointer[memberlist.Memberlist]
}

func (*echo) NodeMeta(int) []byte             { return nil }
func (*echo) GetBroadcasts(_, _ int) [][]byte { return nil }
func (*echo) LocalState(bool) []byte          { return nil }
func (*echo) MergeRemoteState([]byte, bool)   {}

func (e *echo) NotifyMsg(b []byte) {
	name, text, _ := bytes.Cut(bytes.Clone(b), []byte(" "))
	go e.send(string(name), text)
}

// send waits until the member is known: its message may be here before the state that names it.
func (e *echo) send(name string, text []byte) {
	for ; ; time.Sleep(10 * time.Millisecond) {
		list := e.list.Load()
		if list == nil {
			continue
		}
		for _, m := range list.Members() {
			if m.Name != name {
				continue
			}
			if len(text) > 1000 {
				list.SendReliable(m, text)
			} else {
				list.SendBestEffort(m, text)
			}
			return
		}
	}
}

func main() {
	e := &echo{}
	config := memberlist.DefaultLANConfig()
	config.Name, config.Delegate = "server", e
	list, err := memberlist.Create(config)
	if err != nil {
		log.Fatal(err)
	}
	e.list.Store(list)
	select {}
}
