package ledger

import (
	"errors"
	"testing"
)

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"containerID":"c1","bootID":"b","state":"attached","interfaces":[{"name":"eth0","hostName":"fl1"}]}`))
	f.Add([]byte(`{"version":2,"containerID":"c1","bootID":"b","adds":[{"ifName":"eth0","state":"attached","interfaces":[{"name":"eth0","hostName":"fl1"}]}],"incomplete":true}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		rec, err := decodeRecord(raw, "c1")
		if err != nil {
			return
		}
		files := files{dir: t.TempDir()}
		if err := errors.Join(files.prepare(rec), files.publish("c1")); err != nil {
			t.Fatal(err)
		}
		again, bad, err := files.read()
		if err != nil || len(bad) != 0 || len(again) != 1 || len(again[0].Adds) != len(rec.Adds) || len(rec.Adds) > 0 && again[0].Adds[0].State != rec.Adds[0].State {
			t.Fatalf("wrote %+v, read %+v, %+v, %v", rec, again, bad, err)
		}
	})
}
