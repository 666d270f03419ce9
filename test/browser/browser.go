// Package browser runs Chromium without a window for tests of a page. It speaks the protocol
// of its developer tools over a pipe.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Required is the variable that makes a test fail where no browser is installed. Otherwise it
// is skipped.
const Required = "FAIRLEAD_BROWSER"

// patience bounds each command of the browser.
const patience = 30 * time.Second

// Browser is a browser with one page.
type Browser struct {
	tb      testing.TB
	in      *os.File
	out     *os.File
	read    *bufio.Reader
	id      int
	session string
	// Errors are the errors that pages logged.
	Errors []string
}

// New starts a browser, which ends with the test.
func New(tb testing.TB) *Browser {
	tb.Helper()
	path, err := installed()
	if err != nil {
		if os.Getenv(Required) != "" {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
	toRead, in, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, toWrite, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	// The context of a test ends before its cleanups, which close the browser in order.
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--force-color-profile=srgb",
		"--remote-debugging-pipe", "--user-data-dir="+tb.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{toRead, toWrite} // 3 and 4
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	toRead.Close()
	toWrite.Close()
	b := &Browser{tb: tb, in: in, out: out, read: bufio.NewReader(out)}
	tb.Cleanup(func() {
		b.session = ""
		b.send("Browser.close", nil)
		kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			tb.Errorf("the browser: %v", err)
		}
		kill.Stop()
		in.Close()
		out.Close()
	})
	var target struct{ TargetID string }
	b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.Call(domain+".enable", nil, nil)
	}
	return b
}

func installed() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no browser is installed: apt-get install chromium; with %s=1 this is a failure", Required)
}

func (b *Browser) send(method string, parameters any) {
	b.id++
	text, err := json.Marshal(map[string]any{"id": b.id, "method": method, "params": parameters, "sessionId": b.session})
	if b.session == "" {
		text, err = json.Marshal(map[string]any{"id": b.id, "method": method, "params": parameters})
	}
	if err != nil {
		b.tb.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.tb.Errorf("the browser has ended: %v", err)
	}
}

// message is an answer of the browser, or an event.
type message struct {
	ID     int
	Method string
	Result json.RawMessage
	Error  *struct{ Message string }
	Params json.RawMessage
}

// next returns the next message, and notes the errors of pages.
func (b *Browser) next(reason string) message {
	b.tb.Helper()
	if err := b.out.SetReadDeadline(time.Now().Add(patience)); err != nil {
		b.tb.Fatal(err)
	}
	text, err := b.read.ReadBytes(0)
	if err != nil {
		b.tb.Fatalf("%s: no answer from the browser: %v", reason, err)
	}
	var m message
	if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
		b.tb.Fatal(err)
	}
	var logged struct {
		Entry struct{ Level, Text, URL string }
	}
	switch m.Method {
	case "Log.entryAdded":
		if err := json.Unmarshal(m.Params, &logged); err != nil {
			b.tb.Fatal(err)
		}
		if logged.Entry.Level == "error" {
			b.Errors = append(b.Errors, logged.Entry.Text+" "+logged.Entry.URL)
		}
	case "Runtime.exceptionThrown":
		b.Errors = append(b.Errors, string(m.Params))
	}
	return m
}

// Call executes a command of the protocol, and decodes its result unless into is nil.
func (b *Browser) Call(method string, parameters, into any) {
	b.tb.Helper()
	b.send(method, parameters)
	for {
		m := b.next(method)
		switch {
		case m.Method != "" || m.ID != b.id:
		case m.Error != nil:
			b.tb.Fatalf("%s: %s", method, m.Error.Message)
		default:
			if into == nil {
				return
			}
			if err := json.Unmarshal(m.Result, into); err != nil {
				b.tb.Fatalf("%s: %v in %s", method, err, m.Result)
			}
			return
		}
	}
}

// Tasks returns the processor time of each task of the page's main thread during do. Unlike
// the time by the clock it does not depend on other programs.
func (b *Browser) Tasks(do func()) []time.Duration {
	b.tb.Helper()
	b.Call("Tracing.start", map[string]any{"transferMode": "ReportEvents", "traceConfig": map[string]any{"includedCategories": []string{"toplevel", "__metadata"}, "excludedCategories": []string{"*"}}}, nil)
	do()
	b.Call("Tracing.end", nil, nil)
	type event struct {
		Name     string
		Pid, Tid int
		Tdur     int64 // microseconds
		Args     struct{ Name string }
	}
	var all []event
	for {
		m := b.next("Tracing.end")
		if m.Method == "Tracing.tracingComplete" {
			break
		}
		var collected struct{ Value []event }
		if m.Method == "Tracing.dataCollected" {
			if err := json.Unmarshal(m.Params, &collected); err != nil {
				b.tb.Fatal(err)
			}
			all = append(all, collected.Value...)
		}
	}
	main := map[[2]int]bool{}
	for _, e := range all {
		if e.Name == "thread_name" && e.Args.Name == "CrRendererMain" {
			main[[2]int{e.Pid, e.Tid}] = true
		}
	}
	var out []time.Duration
	for _, e := range all {
		if main[[2]int{e.Pid, e.Tid}] && e.Name == "ThreadControllerImpl::RunTask" {
			out = append(out, time.Duration(e.Tdur)*time.Microsecond)
		}
	}
	return out
}

// Open opens an address in a window of a size.
func (b *Browser) Open(url string, width, height int) {
	b.tb.Helper()
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.Call("Page.navigate", map[string]any{"url": url}, nil)
}

// Dark sets the theme that the user prefers.
func (b *Browser) Dark(dark bool) {
	b.tb.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// Eval returns the value of an expression, of a promise when it is fulfilled.
func Eval[T any](b *Browser, expression string) T {
	b.tb.Helper()
	var out struct {
		Result           struct{ Value T }
		ExceptionDetails json.RawMessage
	}
	b.Call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &out)
	if out.ExceptionDetails != nil {
		b.tb.Fatalf("%s: %s", expression, out.ExceptionDetails)
	}
	return out.Result.Value
}

// Await waits until an expression is true. It looks in each frame. An error of the
// expression counts as false: the page may not be loaded yet.
func (b *Browser) Await(expression string) {
	b.tb.Helper()
	if !Eval[bool](b, `new Promise((done) => {
		const end = Date.now() + 20000;
		const is = () => { try { return `+expression+`; } catch { return false; } };
		const look = () => { if (is()) done(true); else if (Date.now() > end) done(false); else requestAnimationFrame(look); };
		look();
	})`) {
		b.tb.Fatalf("not true in 20 s: %s; the page has: %s; errors: %q", expression, Eval[string](b, "document.body?.innerText ?? ''"), b.Errors)
	}
}

// Press presses a key with its name in the DOM, as "Enter" or "/".
func (b *Browser) Press(key string) {
	b.tb.Helper()
	codes := map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
	down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
	if len(key) == 1 {
		down["text"] = key
	}
	b.Call("Input.dispatchKeyEvent", down, nil)
	b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]}, nil)
}

// Type types a text into the focused field.
func (b *Browser) Type(text string) {
	b.tb.Helper()
	b.Call("Input.insertText", map[string]any{"text": text}, nil)
}

// Screenshot returns the window as a PNG.
func (b *Browser) Screenshot() []byte {
	b.tb.Helper()
	var out struct{ Data string }
	b.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &out)
	png, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		b.tb.Fatal(err)
	}
	return png
}
