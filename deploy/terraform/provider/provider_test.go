package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestNamesInPaths(t *testing.T) {
	for _, each := range []struct {
		template string
		names    []any
		expected string
	}{
		{"/management/v1/namespaces/{namespace}/policy", []any{"prod", "a/b c"}, "/management/v1/namespaces/prod$a%2Fb%20c/policy"},
		{"/management/v1/namespaces/{namespace}/policy", []any{}, "/management/v1/namespaces/$/policy"},
		{"/management/v1/namespaces/{namespace}/policy", []any{"a$b", "c"}, "/management/v1/namespaces/a$b%7Cc/policy?delimiter=%7C"},
		{"/management/v1/namespaces/{namespace}/policy", []any{".."}, "/management/v1/namespaces/%2E%2E/policy"},
		{"/v1/namespaces/{namespace}", []any{"prod", "a.b"}, "/v1/namespaces/prod%1Fa.b"},
	} {
		path, err := fill(each.template, nil, map[string]any{"namespace": each.names})
		if err != nil || path != each.expected {
			t.Errorf("%v: %s, %v", each.names, path, err)
		}
	}
	if _, err := fill("/v1/namespaces/{namespace}", nil, map[string]any{"namespace": []any{}}); err == nil {
		t.Error("the root was accepted")
	}
}

func TestEqualValues(t *testing.T) {
	same := [][2]any{
		{json.Number("20"), json.Number("20.0")},
		{json.Number("1e1"), json.Number("10")},
		{map[string]any{"a": true, "b": "x"}, map[string]any{"b": "x", "a": true}},
	}
	for _, pair := range same {
		if canonical(pair[0], false) != canonical(pair[1], false) {
			t.Errorf("%v and %v differ", pair[0], pair[1])
		}
	}
	different := [][2]any{{json.Number("20"), "20"}, {"true", true}, {nil, ""}, {[]any{"a", "b"}, []any{"b", "a"}}}
	for _, pair := range different {
		if canonical(pair[0], false) == canonical(pair[1], false) {
			t.Errorf("%v and %v are equal", pair[0], pair[1])
		}
	}
	if canonical([]any{"a", "b"}, true) != canonical([]any{"b", "a"}, true) {
		t.Error("sets depend on the order")
	}
}

func TestRequests(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		requests++
		switch {
		case request.Header.Get("x-api-key") != "mnd_key":
			writer.WriteHeader(http.StatusUnauthorized)
		case request.URL.Path == "/busy" && requests == 1:
			writer.Header().Set("retry-after", "1")
			writer.WriteHeader(http.StatusServiceUnavailable)
		case request.URL.Path == "/moved":
			http.Redirect(writer, request, "/busy", http.StatusFound)
		case request.URL.Path == "/refused":
			writer.WriteHeader(http.StatusConflict)
			_, _ = writer.Write([]byte(`{"detail": "Label 'pii' exists already"}`))
		default:
			_, _ = writer.Write([]byte(`{"count": 20}`))
		}
	}))
	defer server.Close()
	api := newClient(server.URL, "mnd_key")
	answer, err := api.send(context.Background(), http.MethodGet, "/busy", nil)
	if err != nil || answer["count"] != json.Number("20") || requests != 2 {
		t.Errorf("%v, %v after %d requests", answer, err, requests)
	}
	_, err = api.send(context.Background(), http.MethodGet, "/refused", nil)
	if !hasStatus(err, http.StatusConflict) || err.Error() != "GET /refused was refused with status 409: Label 'pii' exists already" {
		t.Error(err)
	}
	if _, err = api.send(context.Background(), http.MethodGet, "/moved", nil); !hasStatus(err, http.StatusFound) {
		t.Errorf("a redirect was followed: %v", err)
	}
}
