# An image with simulated NPUs, for CI: make wheels && docker build -t npukit-sim .
# The wheels bring the simulated NPU compiled, so that the image needs no compiler.
FROM python:3.11-slim
ARG TORCH=2.13.0
ENV NPUKIT_CACHE=/opt/npukit
COPY dist/*.whl /tmp/wheels/
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu "torch==$TORCH" numpy pytest \
    && pip install --no-cache-dir --find-links /tmp/wheels npukit \
    && npukit sim setup
CMD ["bash"]
