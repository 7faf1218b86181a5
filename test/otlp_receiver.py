"""A receiver of OpenTelemetry traces (OTLP over HTTP/protobuf and over gRPC) for test/testenv/binary_traces_test.go.

It prints its two ports as one line of JSON, and then one line for each span."""
import json
import sys
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc

lock = threading.Lock()


def value(v):
    return getattr(v, v.WhichOneof("value")) if v.WhichOneof("value") != "array_value" else [value(x) for x in v.array_value.values]


def show(request, protocol):
    for resource in request.resource_spans:
        about = {a.key: value(a.value) for a in resource.resource.attributes}
        for scope in resource.scope_spans:
            for s in scope.spans:
                line = {"protocol": protocol, "service": about.get("service.name"), "name": s.name, "kind": s.kind, "trace": s.trace_id.hex(), "span": s.span_id.hex(),
                        "parent": s.parent_span_id.hex(), "start": s.start_time_unix_nano, "end": s.end_time_unix_nano, "failed": s.status.code == 2,
                        "attributes": {a.key: value(a.value) for a in s.attributes}}
                with lock:
                    print(json.dumps(line), flush=True)


class Http(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        good = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        if good:
            show(service.ExportTraceServiceRequest.FromString(body), "http")
        self.send_response(200 if good else 400)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Grpc(rpc.TraceServiceServicer):
    def Export(self, request, _):
        show(request, "grpc")
        return service.ExportTraceServiceResponse()


http = ThreadingHTTPServer(("127.0.0.1", 0), Http)
server = grpc.server(futures.ThreadPoolExecutor(2))
rpc.add_TraceServiceServicer_to_server(Grpc(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(json.dumps({"http": http.server_port, "grpc": port}), flush=True)
threading.Thread(target=http.serve_forever, daemon=True).start()
sys.stdin.read()
server.wait_for_termination()
